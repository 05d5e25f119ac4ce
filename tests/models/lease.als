module lease
/* The lease of a shard, with an owner that was asleep.

   One shard. A process leases it, and every transaction enters the shard's row first: under its fencing number, or not at
   all. The row stays locked until the commit, which renews the lease by the database's clock. Whoever finds the lease run
   out fences the shard. A process relies on its lease by its own clock, counted from before it asked.

   gateway/ledger/db/shards.py (Shards, ShardLease), gateway/ledger/writing/writer.py (Writer). */

open util/ordering[Time] as time
open util/ordering[Fence] as fences
open util/ordering[Sequence] as sequences

// ------------------------------------------------------------------------------------------------------- vocabulary

abstract sig Defect {}
one sig BelievesOwnClock, CountsFromTheAnswer extends Defect {}
sig Planted in Defect {}

// ------------------------------------------------------------------------------------------------------------ state

sig Time {}                            // of the database, and of every process that is awake
sig Fence {}                           // the fencing numbers; none is used twice
sig Sequence {}                        // the numbers of events

one sig Shard {
    var owner: lone Process,
    var fence: lone Fence,             // of the row; none: nobody has leased it yet
    var expires_at: lone Time,
    var next_sequence: lone Sequence,
    var locked: lone Process           // whose transaction has entered, and not ended
}

sig Process {
    var lease: lone Fence,             // the number that it was given
    var relied_until: lone Time,              // how long it relies on its lease
    var entered: lone Fence,           // the number under which its transaction entered
    var began: lone Time,              // when it began to ask
    var renews: lone Time,             // how long the lease lasts once its transaction is committed
    var number: lone Sequence          // what its transaction is about to write
}

/* What was committed: who wrote an event of this number, and under which lease. */
var sig Written in Sequence {}
one sig Events { var by: Sequence -> Process, var under: Sequence -> Fence, var late: set Sequence }

one sig Now { var now: one Time }

pred same_row { owner' = owner and fence' = fence and expires_at' = expires_at and next_sequence' = next_sequence }
pred same_processes { lease' = lease and relied_until' = relied_until }
pred same_transactions { locked' = locked and entered' = entered and began' = began and renews' = renews and number' = number }
pred same_events { Written' = Written and by' = by and under' = under and late' = late }
pred same_time { now' = now }

/* How long a lease lasts: two steps of the clock. */
fun after_lease[t: Time]: lone Time { some t.next.next => t.next.next else time/last }

pred init {
    no owner and no fence and no expires_at and next_sequence = Shard -> sequences/first
    no lease and no relied_until and no locked and no entered and no began and no renews and no number
    no Written and no by and no under and no late
    now = Now -> time/first
}

/* What a process thinks of its own lease. */
pred holds[p: Process] { some p.lease and some p.relied_until and Now.now in p.relied_until.prevs }

// ------------------------------------------------------------------------------------------------------------ steps

pred tick {
    some Now.now.next and now' = Now -> Now.now.next
    same_row and same_processes and same_transactions and same_events
}

pred next_fence[f: Fence] { no Shard.fence => f = fences/first else f = Shard.fence.next }

pred acquire[p: Process, f: Fence] {
    no p.lease and no p.entered and no Shard.locked and no Shard.owner and next_fence[f]
    owner' = Shard -> p and fence' = Shard -> f and expires_at' = Shard -> after_lease[Now.now]
    lease' = lease + p -> f and relied_until' = relied_until + p -> after_lease[Now.now] and next_sequence' = next_sequence
    same_transactions and same_events and same_time
}

pred fence_lapsed[f: Fence] {          // by another process; SKIP LOCKED: not while a transaction is in the row
    some Shard.owner and no Shard.locked and Shard.expires_at in Now.now.prevs and next_fence[f]
    no owner' and fence' = Shard -> f and expires_at' = expires_at and next_sequence' = next_sequence
    same_processes and same_transactions and same_events and same_time
}

pred ask[p: Process] {                 // it decides to write; much time may pass until it enters the row
    some p.lease and no p.began and (BelievesOwnClock in Planted implies holds[p])
    began' = began + p -> Now.now and locked' = locked and entered' = entered and renews' = renews
    number' = number
    same_row and same_processes and same_events and same_time
}

pred enter[p: Process] {
    some p.began and no p.entered and no Shard.locked
    p.lease = Shard.fence or BelievesOwnClock in Planted
    locked' = Shard -> p and entered' = entered + p -> p.lease and began' = began
    renews' = renews + p -> after_lease[Now.now]
    number' = number + p -> Shard.next_sequence
    same_row and same_processes and same_events and same_time
}

pred ends[p: Process] {
    entered' = entered - p -> Fence and began' = began - p -> Time and renews' = renews - p -> Time
    number' = number - p -> Sequence
}

pred commit[p: Process] {
    Shard.locked = p and some p.number.next
    no locked' and ends[p]
    next_sequence' = Shard -> p.number.next
    Written' = Written + p.number
    by' = by + Events -> p.number -> p and under' = under + Events -> p.number -> p.entered
    late' = late + (p.entered != Shard.fence => Events -> p.number else none -> none)
    owner' = owner and fence' = fence and expires_at' = Shard -> p.renews
    lease' = lease
    relied_until' = relied_until ++ p -> after_lease[CountsFromTheAnswer in Planted => Now.now else p.began]
    same_time
}

pred crash[p: Process] {               // its transaction is rolled back; the row says that it is the owner
    some p.lease
    locked' = locked - Shard -> p and ends[p]
    lease' = lease - p -> Fence and relied_until' = relied_until - p -> Time
    same_row and same_events and same_time
}

pred refused[p: Process] {             // Fenced: it writes nothing, and takes a new lease with its next write
    some p.began and no p.entered and no Shard.locked and p.lease != Shard.fence and BelievesOwnClock not in Planted
    ends[p] and locked' = locked
    lease' = lease - p -> Fence and relied_until' = relied_until - p -> Time
    same_row and same_events and same_time
}

pred release[p: Process, f: Fence] {
    no p.began and some p.lease and p.lease = Shard.fence and no Shard.locked and next_fence[f]
    no owner' and fence' = Shard -> f and expires_at' = expires_at and next_sequence' = next_sequence
    lease' = lease - p -> Fence and relied_until' = relied_until - p -> Time
    same_transactions and same_events and same_time
}

pred nothing { same_row and same_processes and same_transactions and same_events and same_time }

fact traces {
    init
    always (nothing or tick
        or (some f: Fence | fence_lapsed[f])
        or (some p: Process | ask[p] or enter[p] or commit[p] or crash[p] or refused[p])
        or (some p: Process, f: Fence | acquire[p, f] or release[p, f]))
}

// --------------------------------------------------------------------------------------------------------- promises

pred no_write_counts_after_a_fence {   // nothing is committed under a number that is not the row's any more
    always no late
}
pred one_owner_at_a_time {             // numbers of events are in the order of the owners, each by one process
    always all disj a, b: Written | b in a.nexts implies
        ((Events.under[b] = Events.under[a] and Events.by[b] = Events.by[a])
         or Events.under[b] in Events.under[a].nexts)
}
pred numbers_have_no_gap_and_are_used_once {
    always (Written = Shard.next_sequence.prevs and all s: Written | one Events.by[s])
}
pred who_relies_on_a_lease_has_it {    // a process stops before anybody else may fence it
    always all p: Process | holds[p] implies Shard.owner = p and Shard.fence = p.lease
}
pred promises {
    no_write_counts_after_a_fence and one_owner_at_a_time and numbers_have_no_gap_and_are_used_once
    who_relies_on_a_lease_has_it
}

check right { no Planted implies promises } for 4 but 5 Time, exactly 2 Process, 11..11 steps expect 0

check wrong_believes_own_clock { Planted = BelievesOwnClock implies no_write_counts_after_a_fence }
    for 4 but 5 Time, exactly 2 Process, 10..10 steps expect 1
check wrong_counts_from_the_answer { Planted = CountsFromTheAnswer implies who_relies_on_a_lease_has_it }
    for 4 but 5 Time, exactly 2 Process, 10..10 steps expect 1
// --------------------------------------------------------------------------------------- the model is not empty

run two_owners_write_one_after_the_other {
    no Planted and eventually (some disj a, b: Written | Events.by[a] != Events.by[b])
} for 4 but 5 Time, exactly 2 Process, 11..11 steps expect 1
run an_owner_that_was_asleep_is_refused {
    no Planted and eventually (some p: Process | refused[p] and some Shard.owner)
} for 4 but 5 Time, exactly 2 Process, 11..11 steps expect 1
run a_lease_that_ran_out_is_renewed_if_nobody_fenced_it {
    no Planted and eventually (some p: Process | commit[p] and not holds[p] and after holds[p])
} for 4 but 5 Time, exactly 2 Process, 11..11 steps expect 1
