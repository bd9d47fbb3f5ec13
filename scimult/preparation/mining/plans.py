"""Rules as plans: SELECTs of candidates for the groups of one block, for any SQL engine.

A plan returns rows ``(number, query, paper)``: a candidate of a group, not always once, and
positives may be among them. It may read

- ``own (number, query, paper)``: the groups of the block and their positives,
- ``asked (number, query)``: the groups of the block,
- ``edges (citing, cited)``, ``shown (query, paper)``, ``triples (query, positive, negative)``,
  and ``(paper, value)`` of ``paper_label``, ``paper_author``, ``paper_venue``,
- what ``tables.py`` counts and numbers: members of a field, an author or a venue, and ``draws``.

No plan joins what has no bound: a paper of 100,000 citations, or a venue of a million papers, is
cut to ``max_neighbours`` of them first, chosen by ``hashing.key``.
"""

from __future__ import annotations

from scimult.preparation.mining.hashing import key_sql

# Draws per wanted candidate: some repeat, some are positives, some are of the wrong field.
DRAWS = 4
# DuckDB's ``arg_min`` keeps fewer than a million values.
MOST = 999_999
CITED_BY_CITED = """
    SELECT own.number, own.query, edges.cited AS paper
    FROM own JOIN edges ON edges.citing = own.paper"""
SHOWN = """
    SELECT asked.number, asked.query, shown.paper
    FROM asked JOIN shown ON shown.query = asked.query
    UNION ALL
    SELECT own.number, own.query, triples.negative AS paper
    FROM own JOIN triples ON triples.query = own.query AND triples.positive = own.paper"""


def sample(rows: str, owner: str, value: str, count: int, seed: int) -> str:
    """Return a SELECT of at most ``count`` values of each owner: those with the smallest keys.

    Parameters
    ----------
    rows : str
        Table with the columns ``owner`` and ``value``, distinct, read twice.
    """
    # ``arg_min`` takes the room of ``count`` values for each owner: only where there are more.
    count = min(count, MOST)
    crowded = f"SELECT {owner} FROM {rows} GROUP BY {owner} HAVING count(*) > {count}"
    return f"""
    SELECT {rows}.{owner}, {rows}.{value} FROM {rows} ANTI JOIN ({crowded}) crowded
        ON crowded.{owner} = {rows}.{owner}
    UNION ALL
    SELECT {owner}, unnest(arg_min({value}, {key_sql(seed, owner, value)}, {count})) AS {value}
    FROM {rows} WHERE {owner} IN ({crowded})
    GROUP BY {owner}"""


def co_cited(limit: int, seed: int) -> str:
    """Return the plan of papers that some paper cites together with a positive.

    Of the papers that cite a positive, ``limit`` are looked at.
    """
    return f"""
    WITH citing AS (
        SELECT edges.cited AS positive, edges.citing AS citing
        FROM edges WHERE edges.cited IN (SELECT paper FROM own)),
    looked_at AS ({sample("citing", "positive", "citing", limit, seed)}),
    found AS (
        SELECT DISTINCT looked_at.positive, edges.cited AS paper
        FROM looked_at JOIN edges ON edges.citing = looked_at.citing)
    SELECT own.number, own.query, found.paper
    FROM own JOIN found ON found.positive = own.paper"""


def cited_papers(limit: int, seed: int) -> str:
    """Return a SELECT ``(query, paper)`` of at most ``limit`` papers that each query cites."""
    return f"""
    WITH cited AS (
        SELECT citing AS query, cited AS paper
        FROM edges WHERE citing IN (SELECT query FROM asked))
    {sample("cited", "query", "paper", limit, seed)}"""


def sharing_papers(kind: str, limit: int, seed: int) -> str:
    """Return a SELECT ``(query, paper)`` of papers with an author or venue of each query.

    At most ``limit`` of a paper's authors are visited, and ``limit`` papers of an author drawn
    (with replacement where there are more), so that a query costs ``limit ** 2`` at most.
    """
    place = key_sql(seed, "visited.query", "visited.value", "draws.draw")
    return f"""
    WITH visits AS (
        SELECT paper AS query, value
        FROM paper_{kind} WHERE paper IN (SELECT query FROM asked)),
    visited AS ({sample("visits", "query", "value", limit, seed)}),
    drawn AS (
        SELECT visited.query, visited.value,
            CASE WHEN sizes.size > {limit} THEN {place} % sizes.size ELSE draws.draw END AS place
        FROM visited JOIN {kind}_sizes sizes ON sizes.value = visited.value CROSS JOIN draws
        WHERE draws.draw < {limit} AND draws.draw < sizes.size)
    SELECT drawn.query, members.paper
    FROM drawn JOIN {kind}_members members
        ON members.value = drawn.value AND members.place = drawn.place"""


def labels_of(near: str, labels: range) -> str:
    """Return the plan of the labels, of those in a range, of papers near the query."""
    return f"""
    WITH near AS ({near}),
    given AS (
        SELECT near.query, paper_label.value AS paper
        FROM near JOIN paper_label ON paper_label.paper = near.paper
        WHERE paper_label.value >= {labels.start} AND paper_label.value < {labels.stop})
    SELECT asked.number, asked.query, given.paper
    FROM asked JOIN given ON given.query = asked.query"""


def random(candidates: str, size: int, count: int, seed: int) -> str:
    """Return the plan of about ``4 * count`` draws of ``size`` candidates, with replacement."""
    place = key_sql(seed, "asked.number", "draws.draw")
    return f"""
    WITH drawn AS (
        SELECT asked.number, asked.query, {place} % {size} AS place
        FROM asked CROSS JOIN draws WHERE draws.draw < {DRAWS * count})
    SELECT drawn.number, drawn.query, {candidates}.paper
    FROM drawn JOIN {candidates} ON {candidates}.place = drawn.place"""


def same_field(field: str, members: str, count: int, seed: int) -> str:
    """Return the plan of candidates that share a field with the query (SciRepEval, on SPECTER2).

    Each draw takes one field of the query, then one of its candidates. Queries without a field get
    none.

    Parameters
    ----------
    field : str
        ``label`` or ``venue``; ``FIELD_places`` numbers those of each paper.
    members : str
        ``MEMBERS_members`` numbers the candidates of each field.
    """
    first = key_sql(seed, "asked.number", "draws.draw")
    second = key_sql(seed, "drawn.number", "drawn.draw", "places.value")
    return f"""
    WITH drawn AS (
        SELECT asked.number, asked.query, draws.draw, {first} % counts.size AS place
        FROM asked JOIN {field}_counts counts ON counts.paper = asked.query CROSS JOIN draws
        WHERE draws.draw < {DRAWS * count}),
    chosen AS (
        SELECT drawn.number, drawn.query, places.value, {second} % sizes.size AS place
        FROM drawn JOIN {field}_places places
            ON places.paper = drawn.query AND places.place = drawn.place
        JOIN {members}_sizes sizes ON sizes.value = places.value)
    SELECT chosen.number, chosen.query, members.paper
    FROM chosen JOIN {members}_members members
        ON members.value = chosen.value AND members.place = chosen.place"""


def other_field(field: str, drawn: str) -> str:
    """Return the plan of those of ``drawn`` that have a field, but none of the query's (SPECTER2).

    Queries without a field get none: nothing says what would be another one.
    """
    return f"""
    WITH any_field AS ({drawn}),
    sharing AS (
        SELECT DISTINCT any_field.query, any_field.paper
        FROM any_field JOIN paper_{field} mine ON mine.paper = any_field.query
        JOIN paper_{field} theirs
            ON theirs.paper = any_field.paper AND theirs.value = mine.value)
    SELECT any_field.number, any_field.query, any_field.paper
    FROM any_field ANTI JOIN sharing
        ON sharing.query = any_field.query AND sharing.paper = any_field.paper
    WHERE any_field.query IN (SELECT paper FROM paper_{field})
        AND any_field.paper IN (SELECT paper FROM paper_{field})"""
