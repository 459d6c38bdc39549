"""Who runs where: the one decision of a tick, and its explanation. Pure, total, deterministic.

Who chooses first is said in `turns`. Nobody blocks the queue: a job that fits nowhere now is passed over, and comes
again at the next tick. Where: hard filters, then what is kept for others (`reserve`), then the user's order of cards,
then the least expected finish with a small price for the quota; among finishes that are nearly equal a slot that is
there already, then the session that takes less of its quota, then the name. At last slots of live sessions may pass to
shorter jobs (`moves`). It knows no platform and has no clock, and the order of a snapshot's tuples does not matter.
Which spots fit a job is decided in `spots`, what one would mean for it in `expectation`; they are compared on the
`board`, which also keeps account of what is left.
"""

from __future__ import annotations

import math
from datetime import datetime

from freegpu.orchestrator import moves
from freegpu.orchestrator.board import Board
from freegpu.orchestrator.crowd import Takers
from freegpu.orchestrator.fitting import KEPT
from freegpu.orchestrator.model import Action, Score, Snapshot, Waiting
from freegpu.orchestrator.spots import Ask
from freegpu.orchestrator.turns import endangered
from freegpu.orchestrator.witness import Witness, nothing_on, silent

__all__ = ["decide", "explain", "nothing_on"]

#: fewer jobs are asked sooner than it is found out whether they should be; and more are not remembered from one decision to
#: the next, so that it is found out anew each time
FEW, MANY = 5, KEPT


def decide(snapshot: Snapshot, now: datetime, witness: Witness | None = None) -> list[Action]:
    """What to assign, to start and to pass on now. Never raises; equal snapshots give equal actions, in equal order.

    `witness`: is told what the decision sees; it changes nothing.
    """
    board = Board.of(snapshot, now)
    placed: set[str] = set()
    # a witness is told of everybody's turn; else who cannot get anything is not even asked
    worth = witness is None and FEW <= len(snapshot.waiting) <= MANY
    takers = Takers(board) if worth else None
    queue = board.queue(snapshot.waiting if takers is None else takers.jobs())
    about = () if witness is None else witness.about
    if witness is not None:
        witness.begins(board, queue)
    for at, (_, job, ask, fit) in enumerate(queue):
        if board.spent:
            break
        if about and job.id in about and witness is not None:
            witness.turn(at)
        fit.to_come -= 1
        if fit.hopeless or job.id in placed:
            continue
        claim = board.claim(job, ask, fit)
        if ask.work_s > fit.most.get(claim.urgent, math.inf) or not board.offered(claim):
            continue
        ranked = board.ranked(ask, fit, claim)
        if ranked:
            if witness is not None:
                witness.takes(at, ranked)
            board.take(*ranked[0], ask, job.id)
            placed.add(job.id)
            if takers is not None and takers.none:
                break
        elif not fit.spots:
            # What is free only shrinks while we decide, so the next job of this kind need not look again.
            fit.hopeless = True
        elif fit.to_come:
            fit.most[claim.urgent] = board.most_work(ask, fit, claim)
    passed: list[Action] = []
    if snapshot.goal == "jct" and snapshot.running and (takers is None or takers.passes_on()):
        if len(queue) < len(snapshot.waiting):
            queue = board.queue(snapshot.waiting)
        rest = (
            (job, ask, fit.paces is not None and endangered(job, ask, fit.paces, now), fit.homes)
            for _, job, ask, fit in queue
            if job.id not in placed
        )
        passed += moves.find(
            rest, snapshot.running, lambda needs: board.fitting.of(needs).homes, now
        )
    if witness is not None:
        witness.ends(passed)
    return [*board.assigned, *(started.action() for started in board.started), *passed]


def explain(job: Waiting, snapshot: Snapshot, now: datetime) -> list[Score]:
    """What every platform, offer and free slot would mean for this job if it were alone, best first.

    `feasible` is what decide() could take now; the first of these is what it would take. A session that a
    person must start is not feasible to freegpu, and still has its expected finish.
    """
    board = Board.of(snapshot, now)
    ask = Ask.of(job)
    fit = board.fit(ask.kind)
    claim = board.claim(job, ask, fit)
    scores = [outlook.score(ask, spot) for spot, outlook in board.ranked(ask, fit, claim)]
    rest = [(spot, board.explained(ask, spot, claim)) for spot in board.spots]
    scores += [outlook.score(ask, spot) for spot, outlook in rest if outlook.fault]
    shown = {score.platform for score in scores}
    mute = [place for place in board.places if place.platform not in shown]
    return scores + [silent(place, fit.kind, now) for place in mute]
