module publish
/* Publish with an Idempotency-Key: claim, send, confirm, record; crash, fence, take over, repeat.

   One key. A request claims it in the ledger before the broker is asked. An Owner is a process under one lease of its
   shard (ShardLease): one that is fenced may run on, with a new lease that does not hold the key, or do nothing more,
   which is a crash. A step is one commit of the ledger, or one publish with what its broker made of it.

   gateway/core/publishing: keys.py, keyed_messages.py, endings.py, sending.py; gateway/ledger/pending/keys.py. */

// ------------------------------------------------------------------------------------------------------- vocabulary

abstract sig Event {}
one sig accepted, resent, confirmed, refused, not_sent, unknown extends Event {}

/* Which event may follow which: the table that judges every ledger. */
fun next: Event -> Event {
    accepted -> (resent + confirmed + refused + not_sent + unknown)
    + resent -> (resent + confirmed + refused + not_sent + unknown)
    + unknown -> (resent)
}

abstract sig KeyStatus {}
one sig key_running, key_done, key_unknown extends KeyStatus {}

abstract sig Obligation {}
one sig obligation_pending, obligation_parked extends Obligation {}

abstract sig Answer {}
one sig ok, publish_refused, broker_unavailable, outcome_unknown, idempotency_key_reused, idempotency_key_running
    extends Answer {}

/* What is wrong with the gateway; nothing, unless a check says so. */
abstract sig Defect {}
one sig KeyWithoutBody, SentBeforeClaim, LateOutcomeCounts extends Defect {}
sig Planted in Defect {}

// ------------------------------------------------------------------------------------------------------------ state

sig Body {}

sig Message {
    body: one Body,
    var last: lone Event,              // of its timeline
    var obligation: lone Obligation
}
sig Refusable in Message {}            // the broker refuses them for good, each time
var sig Arrived, Unmarked, UnmarkedTwice in Message {}

one sig Key {
    var status: lone KeyStatus,        // none: nobody has claimed it
    var fingerprint: lone Body,
    var holder: lone Owner,
    var message: lone Message,
    var kept: lone Answer
}

sig Owner {
    var sends: lone Message,           // it is about to send this
    var about: lone Message,           // it knows the outcome of this, and has not recorded it
    var outcome: lone Event
}
var sig Alive in Owner {}              // the shard's row still names it
var sig Again, Recovering in Owner {}  // an earlier attempt may have arrived; it does this for nobody's request

sig Request {
    content: one Body,
    var waits: lone Owner,
    var asked: lone Message,
    var answered: lone Answer
}

pred same_key { status' = status and fingerprint' = fingerprint and holder' = holder and message' = message and kept' = kept }
pred same_ledger { same_key and last' = last and obligation' = obligation }
pred same_broker { Arrived' = Arrived and Unmarked' = Unmarked and UnmarkedTwice' = UnmarkedTwice }
pred same_hands { sends' = sends and about' = about and outcome' = outcome and Again' = Again and Recovering' = Recovering }
pred same_life { Alive' = Alive }
pred same_callers { waits' = waits and asked' = asked and answered' = answered }

pred init {
    no status and no fingerprint and no holder and no message and no kept
    no last and no obligation
    no Arrived and no Unmarked and no UnmarkedTwice
    no sends and no about and no outcome and no Again and no Recovering
    Alive = Owner
    no waits and no asked and no answered
}

// ------------------------------------------------------------------------------------------------------------ steps

fun told[e: Event]: Answer {
    e = confirmed => ok else e = refused => publish_refused else e = not_sent => broker_unavailable else outcome_unknown
}
pred freed { no status' and no fingerprint' and no holder' and no message' and no kept' }
pred ends[e: Event] {                  // finality
    e = not_sent => freed else {
        status' = Key -> (e in confirmed + refused => key_done else key_unknown)
        kept' = (e in confirmed + refused => Key -> told[e] else none -> none)
        fingerprint' = fingerprint and holder' = holder and message' = message
    }
}
pred idle[o: Owner] { o in Alive and no o.sends and no o.about }
pred asks[r: Request] { no r.answered and no r.waits }
pred answers[r: Request, a: Answer] { answered' = answered + r -> a and waits' = waits and asked' = asked }
pred takes[o: Owner, m: Message] { sends' = sends + o -> m and about' = about and outcome' = outcome }

pred claim_new[r: Request, o: Owner, m: Message] {
    asks[r] and idle[o] and no Key.status
    no m.last and m.body = r.content and m not in Arrived
    status' = Key -> key_running and fingerprint' = Key -> r.content and holder' = Key -> o and message' = Key -> m
    no kept'
    last' = last + m -> accepted and obligation' = obligation + m -> obligation_pending
    takes[o, m] and Again' = Again and Recovering' = Recovering
    waits' = waits + r -> o and asked' = asked + r -> m and answered' = answered
    same_broker and same_life
}

pred claim_refused[r: Request, o: Owner] {     // Mismatch, StoredAnswer, RunningRequest
    asks[r] and idle[o] and some Key.status
    Key.fingerprint != r.content and KeyWithoutBody not in Planted => answers[r, idempotency_key_reused]
    else Key.status = key_done => answers[r, Key.kept]
    else Key.status = key_running and Key.holder in Alive and answers[r, idempotency_key_running]
    same_ledger and same_broker and same_hands and same_life
}

pred claim_again[r: Request, o: Owner] {       // Unknown: nobody has it, and it has no answer
    asks[r] and idle[o] and some Key.status
    Key.fingerprint = r.content or KeyWithoutBody in Planted
    Key.status = key_unknown or (Key.status = key_running and Key.holder not in Alive)
    let m = Key.message {
        some m.obligation => {
            status' = Key -> key_running and holder' = Key -> o
            fingerprint' = fingerprint and message' = message and kept' = kept
            obligation' = obligation ++ m -> obligation_pending
            takes[o, m] and Again' = Again + o and Recovering' = Recovering
            waits' = waits + r -> o and asked' = asked + r -> m and answered' = answered
        } else {
            ends[m.last] and obligation' = obligation
            answered' = answered + r -> told[m.last] and asked' = asked + r -> m and waits' = waits
            same_hands
        }
    }
    last' = last and same_broker and same_life
}

pred take_over[o: Owner] {                     // OutboxSender: at start, and when another process is found dead
    idle[o] and Key.status = key_running and Key.holder not in Alive
    Key.message.obligation = obligation_pending
    status' = status and holder' = Key -> o and fingerprint' = fingerprint and message' = message and kept' = kept
    last' = last and obligation' = obligation
    takes[o, Key.message] and Again' = Again + o and Recovering' = Recovering + o
    same_broker and same_life and same_callers
}

pred arrives[m: Message, marked: Owner, o: Owner] {
    Arrived' = Arrived + m
    o in marked => Unmarked' = Unmarked and UnmarkedTwice' = UnmarkedTwice
    else { Unmarked' = Unmarked + m and UnmarkedTwice' = UnmarkedTwice + (m & Unmarked) }
}

pred send[o: Owner, m: Message, e: Event] {    // by a process that runs, and may have been fenced meanwhile
    m = o.sends
    e in confirmed + refused + not_sent + unknown
    e = confirmed => m not in Refusable and arrives[m, Again, o]
    else e = refused => m in Refusable and same_broker
    else e = unknown => (same_broker or (m not in Refusable and arrives[m, Again, o]))
    else same_broker
    sends' = sends - o -> m and about' = about + o -> m and outcome' = outcome + o -> e
    Again' = Again and Recovering' = Recovering
    same_ledger and same_life and same_callers
}

pred done_with[o: Owner] {
    sends' = sends and about' = about - o -> Message and outcome' = outcome - o -> Event
    Again' = Again - o and Recovering' = Recovering - o
}
pred tells[o: Owner, a: Answer] {
    answered' = answered + waits.o -> a and waits' = waits - Request -> o and asked' = asked
}

pred record[o: Owner] {                        // SettleKey, and the key is this owner's
    o in Alive and some o.about and Key.holder = o and Key.status = key_running
    let m = o.about, e = (o in Again and o.outcome = not_sent => unknown else o.outcome) {   // stay_unknown
        last' = last ++ m -> e
        obligation' = (e = unknown and some m.obligation => obligation ++ m -> obligation_parked
                       else obligation - m -> Obligation)
        (o in Recovering => {
            status' = Key -> key_unknown
            fingerprint' = fingerprint and holder' = holder and message' = message and kept' = kept
        } else ends[e])
        tells[o, told[e]]
    }
    done_with[o] and same_broker and same_life
}

pred record_lost[o: Owner] {                   // KeyLost: it was fenced, and writes under a new lease
    o not in Alive and some o.about
    let m = o.about, e = o.outcome {
        LateOutcomeCounts in Planted => {
            last' = last ++ m -> e
            obligation' = (e = unknown and some m.obligation => obligation ++ m -> obligation_parked
                           else obligation - m -> Obligation)
            tells[o, told[e]]
        } else {
            last' = last and obligation' = obligation
            tells[o, e = confirmed => ok else outcome_unknown]
        }
    }
    same_key and done_with[o] and same_broker and same_life
}

pred fence[o: Owner] {
    o in Alive and Alive' = Alive - o
    same_ledger and same_broker and same_hands and same_callers
}

pred send_before_claim[r: Request, o: Owner, m: Message] {   // wrong: the broker has it, and the ledger never will
    SentBeforeClaim in Planted
    asks[r] and idle[o] and no Key.status and no m.last and m.body = r.content and m not in Refusable
    arrives[m, none, o] and same_ledger and same_hands and same_life and same_callers
}

pred nothing { same_ledger and same_broker and same_hands and same_life and same_callers }

fact traces {
    init
    always (nothing
        or (some r: Request, o: Owner | claim_refused[r, o] or claim_again[r, o])
        or (some r: Request, o: Owner, m: Message | claim_new[r, o, m] or send_before_claim[r, o, m])
        or (some o: Owner | take_over[o] or record[o] or record_lost[o] or fence[o])
        or (some o: Owner, m: Message, e: Event | send[o, m, e]))
}

// --------------------------------------------------------------------------------------------------------- promises

pred acknowledged_is_never_lost {
    always all r: answered.ok | some m: Arrived | m.body = r.content
}
pred nothing_arrives_that_was_not_sent {       // what was said to be refused, or not sent, is not there and never comes
    always all r: answered.(publish_refused + broker_unavailable) | no r.asked & Arrived
}
pred each_duplicate_is_marked {                // one copy without a mark at most, and one message for the key
    always (no UnmarkedTwice and lone Arrived)
}
pred nothing_stays_in_doubt {                  // whoever asks next finds an outcome, or sends it again
    always {
        Key.status = key_unknown and no Key.message.obligation implies some Key.message.last & (confirmed + refused)
        Key.status = key_running and Key.holder not in Alive and no Key.message.obligation
            implies some Key.message.last & (confirmed + refused)
        Key.status = key_running and Key.holder in Alive
            implies Key.message in Key.holder.(sends + about)
    }
}
pred what_is_written_follows_the_table {
    always all o: Owner | record[o] implies (o in Again => o.about.last -> resent + resent -> o.about.last' in next
                                             else o.about.last -> o.about.last' in next)
}
pred promises {
    acknowledged_is_never_lost and nothing_arrives_that_was_not_sent and each_duplicate_is_marked
    nothing_stays_in_doubt and what_is_written_follows_the_table
}

check right { no Planted implies promises }
    for 2 but exactly 2 Owner, exactly 1 Body, exactly 1 Message, 9..9 steps expect 0
check right_of_two { no Planted implies promises } for 2 but exactly 2 Owner, 7..7 steps expect 0

check wrong_key_without_body { Planted = KeyWithoutBody implies acknowledged_is_never_lost }
    for 2 but 6..6 steps expect 1
check wrong_sent_before_claim { Planted = SentBeforeClaim implies each_duplicate_is_marked }
    for 2 but 6..6 steps expect 1
check wrong_late_outcome_counts { Planted = LateOutcomeCounts implies nothing_arrives_that_was_not_sent }
    for 2 but exactly 1 Body, exactly 1 Message, 9..9 steps expect 1
check wrong_late_outcome_counts_for_ever { Planted = LateOutcomeCounts implies nothing_stays_in_doubt }
    for 2 but exactly 1 Body, exactly 1 Message, 9..9 steps expect 1

// --------------------------------------------------------------------------------------- the model is not empty

run a_repeat_gets_the_first_answer {
    no Planted and eventually (some disj r, s: Request | r.answered = ok and s.answered = ok and Unmarked = Arrived)
} for 2 but exactly 1 Body, 8..8 steps expect 1
run taken_over_and_arrived_twice {
    no Planted and eventually (some o: Again, m: Unmarked | send[o, m, confirmed] and after eventually Key.status = key_done)
} for 2 but exactly 1 Body, exactly 1 Message, 9..9 steps expect 1
run a_fenced_owner_confirms_late {
    no Planted and eventually (some o: Owner - Alive | o.outcome = confirmed and record_lost[o] and Key.holder != o)
} for 2 but exactly 1 Body, exactly 1 Message, 9..9 steps expect 1
run nothing_was_sent_and_the_key_is_free {
    no Planted and eventually (some r: Request | r.answered = broker_unavailable and no Key.status)
} for 2 but exactly 1 Body, 8..8 steps expect 1
