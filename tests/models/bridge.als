module bridge
/* The step of a bridge in two modes: on_confirm (at least once, repeats are marked) and dtx (exactly once).

   One message is under way at a time, in dtx in a branch of its own. A run of the bridge ends in a crash at any step; the
   source then delivers again what was not acknowledged. The ledger may still write the decision that the old run had
   handed to it.

   gateway/bridges: flow.py, journal.py, two_phase.py, in_doubt.py; gateway/ledger/pending: branches.py, inbox.py;
   gateway/core/sources/deduplicator.py. */

// ------------------------------------------------------------------------------------------------------- vocabulary

abstract sig Event {}
one sig prepared, forwarded, duplicate_dropped extends Event {}

abstract sig BranchStatus {}
one sig begun, decided, aborted extends BranchStatus {}

abstract sig Mode {}
one sig on_confirm, dtx extends Mode {}

abstract sig Defect {}
one sig AcknowledgedBeforeConfirm, AcknowledgedBeforeDecision, DecidedAfterAbort, InboxApart, CommittedBeforeDecision
    extends Defect {}
sig Planted in Defect {}

// ------------------------------------------------------------------------------------------------------------ state

sig Message { var events: set Event }               // each has an origin id of its own
var sig Queued, Redelivered in Message {}           // at the source, which says what it has delivered before
var sig Inbox in Message {}                         // the ledger knows its origin id
var sig Arrived, ArrivedTwice, Unmarked, UnmarkedTwice in Message {}   // at the target

sig Branch {
    var content: lone Message,
    var status: lone BranchStatus                   // of its row in the ledger; none: there is no row
}
var sig Prepared, Committed in Branch {}            // at the target
var sig Late in Branch {}                           // its decision is on its way to the ledger, and its run has ended

abstract sig Step {}
one sig Taken, Confirmed, Begun, Ready, Chosen, Done, Recorded extends Step {}

one sig Bridge {
    mode: one Mode,
    var has: lone Message,                          // delivered, and not acknowledged
    var branch: lone Branch,
    var step: lone Step
}
var sig Marked in Bridge {}                         // what it has is marked as a possible duplicate

pred same_source { Queued' = Queued and Redelivered' = Redelivered }
pred same_rows { status' = status and content' = content and Late' = Late }
pred same_ledger { events' = events and Inbox' = Inbox and same_rows }
pred same_target {
    Arrived' = Arrived and ArrivedTwice' = ArrivedTwice and Unmarked' = Unmarked and UnmarkedTwice' = UnmarkedTwice
}
pred same_branches { Prepared' = Prepared and Committed' = Committed }
pred goes_to[s: Step] { step' = Bridge -> s and has' = has and branch' = branch and Marked' = Marked }
pred same_bridge { step' = step and has' = has and branch' = branch and Marked' = Marked }
pred idle_again { no step' and no has' and no branch' and no Marked' }

pred init {
    no events and Queued = Message and no Redelivered and no Inbox and same_nothing
    no content and no status and no Prepared and no Committed and no Late
    no has and no branch and no step and no Marked
}
pred same_nothing { no Arrived and no ArrivedTwice and no Unmarked and no UnmarkedTwice }

pred arrives[m: Message, marked: Bridge] {
    Arrived' = Arrived + m and ArrivedTwice' = ArrivedTwice + (m & Arrived)
    some marked => { Unmarked' = Unmarked and UnmarkedTwice' = UnmarkedTwice }
    else { Unmarked' = Unmarked + m and UnmarkedTwice' = UnmarkedTwice + (m & Unmarked) }
}

// ---------------------------------------------------------------------------------------------------- in both modes

pred take[m: Message] {
    no Bridge.step and m in Queued
    Bridge.mode = dtx implies no status.(begun + decided)   // what was left in the middle is settled first
    has' = Bridge -> m and no branch'
    m in Redelivered & Inbox => {
        step' = Bridge -> Recorded and events' = events + m -> duplicate_dropped and no Marked'
    } else {
        step' = Bridge -> Taken and events' = events
        Marked' = ((m in Redelivered and Bridge.mode = on_confirm) => Bridge else none)
    }
    same_source and Inbox' = Inbox and same_rows and same_target and same_branches
}

pred acknowledge {
    some Bridge.has
    Bridge.step = Recorded
        or (AcknowledgedBeforeConfirm in Planted and Bridge.step = Taken and Bridge.mode = on_confirm)
        or (AcknowledgedBeforeDecision in Planted and Bridge.step = Ready)
    Queued' = Queued - Bridge.has and Redelivered' = Redelivered - Bridge.has
    Bridge.step = Recorded => idle_again else same_bridge
    same_ledger and same_target and same_branches
}

pred crash {
    some Bridge.step
    Redelivered' = Redelivered + (Queued & Bridge.has) and Queued' = Queued
    Late' in Late + (Bridge.step = Ready => Bridge.branch else none) and Late in Late'
    events' = events and Inbox' = Inbox and status' = status and content' = content
    idle_again and same_target and same_branches
}

// ------------------------------------------------------------------------------------------------------- on_confirm

pred publish {
    Bridge.mode = on_confirm and Bridge.step = Taken
    (arrives[Bridge.has, Marked] and goes_to[Confirmed])
    or ((arrives[Bridge.has, Marked] or same_target)               // no outcome: sent again, marked
        and step' = step and has' = has and branch' = branch and Marked' = Bridge)
    same_source and same_ledger and same_branches
}

pred record {
    Bridge.step = Confirmed and goes_to[Recorded]
    events' = events + Bridge.has -> forwarded and Inbox' = Inbox + Bridge.has
    same_source and same_rows and same_target and same_branches
}

// -------------------------------------------------------------------------------------------------------------- dtx

pred begin[b: Branch] {
    Bridge.mode = dtx and Bridge.step = Taken and no b.content
    content' = content + b -> Bridge.has and status' = status + b -> begun and Late' = Late
    step' = Bridge -> Begun and branch' = Bridge -> b and has' = has and Marked' = Marked
    events' = events and Inbox' = Inbox
    same_source and same_target and same_branches
}

pred prepare {
    Bridge.step = Begun and goes_to[Ready]
    Prepared' = Prepared + Bridge.branch and Committed' = Committed
    same_source and same_ledger and same_target
}

pred undo {                            // the link was lost before the decision: the same goes again, without a mark
    some Bridge.step & (Begun + Ready)
    status' = status ++ Bridge.branch -> aborted and content' = content and Late' = Late
    step' = Bridge -> Taken and has' = has and no branch' and Marked' = Marked
    events' = events and Inbox' = Inbox
    same_source and same_target and same_branches
}

/* The ledger's row is a register that is written once. */
pred decision[b: Branch] {
    (b.status = begun or (DecidedAfterAbort in Planted and b.status = aborted)) => {
        status' = status ++ b -> decided and events' = events + b.content -> prepared
        Inbox' = (InboxApart in Planted => Inbox else Inbox + b.content)
    } else { status' = status and events' = events and Inbox' = Inbox }
    content' = content
}
pred decide {
    Bridge.step = Ready and decision[Bridge.branch] and Late' = Late
    Bridge.branch.status' = decided => goes_to[Chosen]
    else { step' = Bridge -> Taken and has' = has and no branch' and Marked' = Marked }
    same_source and same_target and same_branches
}
pred decide_late[b: Branch] {          // by the writer of the ledger, for a run that has ended
    b in Late and Late' = Late - b and decision[b]
    same_source and same_target and same_branches and same_bridge
}

pred commits[b: Branch] {              // a target that does not know it any more has committed it
    b in Prepared => arrives[b.content, none] else same_target
    Prepared' = Prepared - b and Committed' = Committed + (b & Prepared)
}
pred commit {
    Bridge.step = Chosen or (CommittedBeforeDecision in Planted and Bridge.step = Ready)
    commits[Bridge.branch]
    Bridge.step = Chosen => { goes_to[Done] or same_bridge }       // or its answer is lost, and it is repeated
    else same_bridge
    same_source and same_ledger
}

pred finish {
    Bridge.step = Done and goes_to[Recorded]
    status' = status - Bridge.branch -> BranchStatus and content' = content and Late' = Late
    events' = events + Bridge.has -> forwarded and Inbox' = Inbox + Bridge.has
    same_source and same_target and same_branches
}

// --------------------------------------------------------------------------- what a run has left, settled by the next

pred settle_begun[b: Branch] {         // first the ledger: aborted, so that nobody can decide it any more
    no Bridge.step and b.status = begun
    status' = status ++ b -> aborted and content' = content and Late' = Late and events' = events and Inbox' = Inbox
    same_source and same_target and same_branches and same_bridge
}
pred roll_back[b: Branch] {            // at the target, then the row goes
    b.status = aborted and Prepared' = Prepared - b and Committed' = Committed
    (status' = status - b -> BranchStatus or status' = status)     // or the process dies in between
    content' = content and Late' = Late and events' = events and Inbox' = Inbox
    same_source and same_target and same_bridge
}
pred settle_decided[b: Branch] {
    no Bridge.step and b.status = decided and commits[b]
    (status' = status - b -> BranchStatus and events' = events + b.content -> forwarded)
    or (status' = status and events' = events)                     // or the process dies in between
    content' = content and Late' = Late and Inbox' = Inbox
    same_source and same_bridge
}

pred nothing { same_source and same_ledger and same_target and same_branches and same_bridge }

fact traces {
    init
    always (nothing or acknowledge or crash or publish or record or prepare or undo or decide or commit or finish
        or (some m: Message | take[m])
        or (some b: Branch | begin[b] or decide_late[b] or settle_begun[b] or roll_back[b] or settle_decided[b]))
}

// --------------------------------------------------------------------------------------------------------- promises

pred acknowledged_is_never_lost {      // what is not at the source any more is at the target
    always Message - Queued in Arrived
}
pred each_duplicate_is_marked {
    always no UnmarkedTwice
}
pred exactly_once {
    Bridge.mode = dtx implies always (no ArrivedTwice and Arrived = Unmarked)
}
pred nothing_is_seen_that_was_not_decided {
    always all b: Committed | b.content in events.prepared
}
pred the_ledger_says_what_is {         // what it calls forwarded is at the target, or dropped because it is
    always events.(forwarded + duplicate_dropped) in Arrived
}
pred nothing_stays_in_doubt {          // the next start finds every branch that the target still holds
    always Prepared in status.BranchStatus
}
pred promises {
    acknowledged_is_never_lost and each_duplicate_is_marked and exactly_once
    nothing_is_seen_that_was_not_decided and the_ledger_says_what_is and nothing_stays_in_doubt
}

check right { no Planted implies promises } for 2 but exactly 1 Message, 11..11 steps expect 0
check right_of_two { no Planted implies promises } for 2 but exactly 2 Message, 8..8 steps expect 0

check wrong_acknowledged_before_confirm { Planted = AcknowledgedBeforeConfirm implies acknowledged_is_never_lost }
    for 1 but 8..8 steps expect 1
check wrong_acknowledged_before_decision { Planted = AcknowledgedBeforeDecision implies acknowledged_is_never_lost }
    for 1 but 8..8 steps expect 1
check wrong_decided_after_abort { Planted = DecidedAfterAbort implies acknowledged_is_never_lost }
    for 1 but 14..14 steps expect 1
check wrong_inbox_apart { Planted = InboxApart implies exactly_once }
    for 2 but exactly 1 Message, 14..14 steps expect 1
check wrong_committed_before_decision { Planted = CommittedBeforeDecision implies exactly_once }
    for 2 but exactly 1 Message, 14..14 steps expect 1

// --------------------------------------------------------------------------------------- the model is not empty

run exactly_once_through_a_crash {
    no Planted and Bridge.mode = dtx
    eventually (crash and Bridge.step = Chosen)
    eventually (no Queued and no status and duplicate_dropped in Message.events)
} for 1 but 14..14 steps expect 1
run a_late_decision_is_refused {
    no Planted and eventually (some b: Branch | decide_late[b] and b.status = aborted)
} for 1 but 12..12 steps expect 1
run sent_again_and_marked {
    no Planted and Bridge.mode = on_confirm
    eventually (no Queued and some ArrivedTwice)
} for 1 but 10..10 steps expect 1
