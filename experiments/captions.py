"""What is said under each figure: what it shows, and what it does not."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Caption:
    """The words under a figure: what it `shows`, and what it `hides` from who reads only that."""

    shows: str
    hides: str


CAPTIONS = {
    "speedups": Caption(
        "Time to target of the reference over the arm's: geometric mean over seeds, paired by "
        "seed, with its 95% t interval where there is one. Right of the line an arm is faster than "
        "the reference. A triangle, if there is any, points to where the true value may lie: some "
        "runs of that arm or of the reference did not reach the target.",
        "One target, one data set and one drawn kind of fleet: at another target the order may be "
        "another. Intervals cover what differs between seeds (fleet, partition, initial weights), "
        "not what a wrong cost model or other devices would change. Each is of one arm against "
        "the reference; intervals of two arms that overlap do not say that these two are equal, "
        "since pairs share their seeds, and of many intervals some miss by chance. A bound is no "
        "arm that could be built. Faster does not say as accurate, or as fair.",
    ),
    "accuracy": Caption(
        "Accuracy on the central test set over time: mean over seeds; of up to eight arms a band "
        "from the lowest to the highest. An evaluation holds until the next; a dot is the time to "
        "target.",
        "The test set is pooled: it hides whom the model serves badly, above all clients that were "
        "never selected and whose samples nobody trained. The band is the range of few seeds and "
        "no confidence interval, and it takes seeds apart that the speed-ups pair. A curve ends "
        "where the first of its seeds ends, which may be early for an arm that was fast. Time is "
        "that of the clock named below the axis: evaluation, and what the server does, is free.",
    ),
    "phases": Caption(
        "What a counted participation takes, by phase: mean over participations and seeds. Thick "
        "bars add up to its duration. Thin ones are what storage and decoding are busy with; "
        "training stalls only while it waits for them. In brackets the mean length of a round, "
        "which lasts until its last counted client.",
        "Means hide stragglers: a round is as long as the slowest client that counts, and those "
        "that were late are not in here at all. An arm whose bars are short may have chosen fast "
        "clients, not read less. Thin bars overlap in time, so that nothing follows from their "
        "sum. Seconds are those of the devices, by the clock named below the axis; the machine "
        "that ran this is none of them. What is read by staging, outside of participations, is "
        "missing.",
    ),
    "hits": Caption(
        "What requests found, by round, over all participations and seeds.",
        "A hit says that a sample was there, not that it was worth training: who trains few "
        "samples again and again hits often and learns little. Read it beside the unique samples "
        "and the bytes from the origin. Shares count requests alike, small samples and large "
        "ones, on fast storage and on slow. A high share may come from who is selected, since "
        "clients that take part again find their caches warm.",
    ),
    "selection": Caption(
        "How often clients were selected, most often first: mean over seeds, band from the lowest "
        "to the highest.",
        "Times say nothing about usefulness: not which samples these clients have, nor what their "
        "updates changed, nor whether they were late and did not count. Clients are sorted anew "
        "for each seed and arm, so that the same place is not the same client. Level is even, "
        "which is not the same as good for the clients that need it.",
    ),
    "clock-error": Caption(
        "The virtual clock against the devices, a dot per participation: on the diagonal they "
        "agree. With hollow ones the host could not keep up with its device.",
        "Devices here are processes on one machine, paced as their profiles say: agreement says "
        "that the clock adds up what profiles and counts imply, not that a phone in a hand takes "
        "as long. Participations that faults struck are left out, and long ones take up most of "
        "the picture: the errors of short ones are in the table.",
    ),
}

TIMELINE = Caption(
    "What each client did when: participations from the start of their round. Where reading "
    "overlaps training, stall and compute alternate; here one is drawn after the other. Pale ones "
    "did not count.",
    "One run of one seed, and of a long one only its beginning and those most often selected: "
    "what it suggests may not hold for the others. When whoever left did so is not known, and "
    "staging between participations is not drawn.",
)

AXIS = Caption(
    "Speed-up over the reference in each cell, with its 95% t interval where there is one; below a "
    "cell's name its measured I/O : compute. A triangle, if there is any, points to where the true "
    "value may lie: some runs did not reach the target.",
    "One fleet mix, one data set, one number of clients, few seeds. Between cells nothing is "
    "known: lines only lead the eye, and cells are not spaced by what they change. Each cell has "
    "a reference of its own: a rising line may be an arm that gains or a reference that loses, "
    "and times of different cells do not compare. Everything off this axis is as in the base "
    "cell, so that what two changes do together is not here. With so few seeds an interval that "
    "includes 1 is no proof of equality.",
)

RATIOS = Caption(
    "Speed-up over the reference against the measured I/O : compute, in every cell of the axes "
    "that move it: a sign per axis, a colour per arm, 95% t intervals.",
    "I/O : compute is one number for several causes: size of samples, storage and computing move "
    "it in ways that differ in how devices differ, in budgets and in decoding. Cells of like "
    "ratio need not behave alike, and where signs of one colour part, they do not. It is that of "
    "the whole fleet with cold caches, before anyone is selected: the clients that an arm selects "
    "may have another. No law is fitted, and beyond the outermost cells nothing is known.",
)
