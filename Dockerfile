# The command line on a CPU:
#   docker build -t scimult .
#   docker run --rm -v "$PWD:/work" --user "$(id -u):$(id -g)" scimult search "a question" --model RUN --papers FOLDER
# Paths are below /work. torch's CPU build is far smaller than the default one:
#   docker build --build-arg TORCH="torch==2.13.0 --index-url URL" -t scimult .
# EXTRAS="" leaves out what prepares data, trains and evaluates.
FROM python:3.11-slim

ARG TORCH="torch==2.13.0"
ARG EXTRAS="train,eval"
ENV PIP_NO_CACHE_DIR=1 DS_ACCELERATOR=cpu TOKENIZERS_PARALLELISM=false HOME=/tmp

# Training takes less time and memory with it (docs/performance.md#memory).
RUN apt-get update && apt-get install -y --no-install-recommends libtcmalloc-minimal4 && rm -rf /var/lib/apt/lists/*
ENV LD_PRELOAD=libtcmalloc_minimal.so.4
# Unquoted: it may hold options of pip.
RUN pip install ${TORCH}
WORKDIR /opt/scimult
COPY pyproject.toml setup.cfg README.md LICENSE ./
COPY scimult scimult
RUN pip install ".[${EXTRAS}]"
COPY configs configs
COPY launch launch
COPY benchmarks benchmarks

RUN useradd --no-create-home scimult && mkdir /work && chown scimult /work
USER scimult
WORKDIR /work
ENTRYPOINT ["scimult"]
CMD ["--help"]
