"""Rules as plans: SELECTs of candidates for the groups of one block, for any SQL engine.

A plan returns candidates of groups as rows ``(number, query, paper)``; it may repeat them and
include positives. It may read

- ``own (number, query, paper)``: the groups of the block and their positives,
- ``asked (number, query)``: the groups of the block,
- ``edges (citing, cited)``, ``shown (query, paper)``, ``triples (query, positive, negative)``,
  and ``(paper, value)`` of ``paper_label``, ``paper_author``, ``paper_venue``,
- the numbered tables of ``tables.py``: members of a field, an author or a venue, and ``draws``.

Every join is bounded: a paper with 100,000 citations, or a venue with a million papers, is first
cut to ``max_neighbours`` of them, chosen by ``hashing.key``.
"""

from __future__ import annotations

from scimult.preparation.mining.hashing import key_sql

# Draws per wanted candidate, since some repeat, are positives, or have the wrong field.
DRAWS = 4
# DuckDB's ``arg_min`` is limited to fewer than a million values.
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
    """Return a SELECT of the ``count`` values of each owner with the smallest keys.

    The table ``rows`` has the distinct columns ``owner`` and ``value``; it is read twice.
    """
    # ``arg_min`` allocates ``count`` values per owner: use it only for owners with more.
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
    """Return the plan of papers that are co-cited with a positive.

    At most ``limit`` papers that cite a positive are considered.
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
    """Return a SELECT ``(query, paper)`` of papers that share an author or venue with each query.

    At most ``limit`` authors of a paper are visited, and ``limit`` papers of an author are drawn
    (with replacement if there are more), so that a query costs at most ``limit ** 2``.
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
    """Return the plan of the labels, within a range, of papers related to the query."""
    return f"""
    WITH near AS ({near}),
    given AS (
        SELECT near.query, paper_label.value AS paper
        FROM near JOIN paper_label ON paper_label.paper = near.paper
        WHERE paper_label.value >= {labels.start} AND paper_label.value < {labels.stop})
    SELECT asked.number, asked.query, given.paper
    FROM asked JOIN given ON given.query = asked.query"""


def random(candidates: str, size: int, count: int, seed: int) -> str:
    """Return the plan of ``DRAWS * count`` draws from ``size`` candidates, with replacement."""
    place = key_sql(seed, "asked.number", "draws.draw")
    return f"""
    WITH drawn AS (
        SELECT asked.number, asked.query, {place} % {size} AS place
        FROM asked CROSS JOIN draws WHERE draws.draw < {DRAWS * count})
    SELECT drawn.number, drawn.query, {candidates}.paper
    FROM drawn JOIN {candidates} ON {candidates}.place = drawn.place"""


def same_field(field: str, members: str, count: int, seed: int) -> str:
    """Return the plan of candidates that share a field with the query (SPECTER2, SciRepEval).

    Each draw picks a field of the query, then a candidate of the field. Queries without a field
    get none.

    ``field`` is ``label`` or ``venue``; ``FIELD_places`` numbers those of each paper, and
    ``MEMBERS_members`` the candidates of each field.
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


def other_field(field: str, candidates: str) -> str:
    """Return the plan of candidates that have fields, but none of the query's (SPECTER2).

    ``candidates`` is the plan to select from. Queries without a field get none.
    """
    return f"""
    WITH any_field AS ({candidates}),
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
