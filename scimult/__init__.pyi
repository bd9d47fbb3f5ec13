from scimult.inference import Ensemble as Ensemble
from scimult.inference import SciMult as SciMult

__version__: str
