module front
/* The fail-over of a front: what a channel of a client does when its upstream connection is lost.

   Publishes have the order in which the client gives them. A connection brings octets in order, so a broker has received
   a first part of what was sent when the connection is lost. With store = "when-down" the ledger's outbox takes what comes
   meanwhile. Deliveries have the client's numbers (tags); the upstream numbers anew on each connection.

   gateway/front: store.py (StoreLane), channels/publishing.py, channels/recovery.py, channels/settling.py;
   gateway/core/publishing: outbox.py, sending.py. */

open util/ordering[Publish] as publishes
open util/ordering[Tag] as tags

// ------------------------------------------------------------------------------------------------------- vocabulary

abstract sig Store {}
one sig never, when_down extends Store {}

abstract sig Defect {}
one sig ResentUnmarked, ConfirmedBeforeStored, NewerOvertakesStored, KeptAgainUnmarked, TagsReused extends Defect {}
sig Planted in Defect {}

// ------------------------------------------------------------------------------------------------------------ state

sig Publish {}
var sig Given, Confirmed in Publish {}              // by the client; to the client
var sig Sent in Publish {}                          // FrontChannel.sent: to the upstream, without an outcome
var sig Wire, Received in Publish {}                // on the present connection: on its way; taken by the broker
var sig Pending in Publish {}                       // StoreLane.pending: on its way to the ledger
var sig Stored in Publish {}                        // the ledger's outbox
var sig Marked, MarkedEntry in Publish {}           // marked when it is sent next; its entry says that it is to be
var sig Arrived, Unmarked, UnmarkedTwice, Overtaken in Publish {}
var sig Dropped in Publish {}                       // the gateway ended before the client had its confirm

sig Message {}
var sig Queued, Redelivered, Finished, Gone in Message {}   // Finished: the client is done with it. Gone: acknowledged
sig Tag {}

one sig Channel {
    store: one Store,
    var outstanding: Tag -> Message,                // FrontChannel.outstanding
    var newest: lone Tag,
    var held: Tag -> Message                        // what the client was given, under which tag
}
var sig Up in Channel {}                            // it has an upstream connection

pred same_client { Given' = Given and Confirmed' = Confirmed and Dropped' = Dropped }
pred same_upstream { Sent' = Sent and Wire' = Wire and Received' = Received and Marked' = Marked }
pred same_lane { Pending' = Pending and Stored' = Stored and MarkedEntry' = MarkedEntry }
pred same_queue { Arrived' = Arrived and Unmarked' = Unmarked and UnmarkedTwice' = UnmarkedTwice and Overtaken' = Overtaken }
pred same_publishes { same_client and same_upstream and same_lane and same_queue }
pred same_messages { Queued' = Queued and Redelivered' = Redelivered and Finished' = Finished and Gone' = Gone }
pred same_tags { outstanding' = outstanding and newest' = newest and held' = held }
pred same_deliveries { same_messages and same_tags }
pred same_link { Up' = Up }

pred init {
    no Given and no Confirmed and no Dropped and no Sent and no Wire and no Received and no Marked
    no Pending and no Stored and no MarkedEntry and no Arrived and no Unmarked and no UnmarkedTwice and no Overtaken
    Queued = Message and no Redelivered and no Finished and no Gone
    no outstanding and no newest and no held
    Up = Channel
}

pred is_first[p: Publish, among: Publish] { p in among and no p.prevs & among }

pred arrives[p: Publish, marked: Publish] {
    Arrived' = Arrived + p
    Overtaken' = Overtaken + (p not in Arrived and some p.nexts & Arrived => p else none)
    p in marked => { Unmarked' = Unmarked and UnmarkedTwice' = UnmarkedTwice }
    else { Unmarked' = Unmarked + p and UnmarkedTwice' = UnmarkedTwice + (p & Unmarked) }
}

// -------------------------------------------------------------------------------------------------------- publishes

pred comes_next[p: Publish] { is_first[p, Publish - Given] and Given' = Given + p }

pred publish[p: Publish] {                          // what is stored goes first
    some Up and comes_next[p]
    no Pending + Stored or NewerOvertakesStored in Planted
    Sent' = Sent + p and Wire' = Wire + p and Received' = Received and Marked' = Marked
    Confirmed' = Confirmed and Dropped' = Dropped
    same_lane and same_queue and same_deliveries and same_link
}

pred keep[p: Publish] {                             // the broker is away: publishing.store
    no Up and Channel.store = when_down and no Sent and comes_next[p]
    Pending' = Pending + p and Stored' = Stored and MarkedEntry' = MarkedEntry
    Confirmed' = Confirmed + (ConfirmedBeforeStored in Planted => p else none) and Dropped' = Dropped
    same_upstream and same_queue and same_deliveries and same_link
}

pred receive[p: Publish] {
    some Up and is_first[p, Wire] and arrives[p, Marked]
    Wire' = Wire - p and Received' = Received + p and Sent' = Sent and Marked' = Marked
    same_client and same_lane and same_deliveries and same_link
}

pred confirm[p: Publish] {                          // by the broker, and so to the client
    some Up and p in Received & Sent
    Sent' = Sent - p and Received' = Received - p and Wire' = Wire and Marked' = Marked - p
    Confirmed' = Confirmed + p and Given' = Given and Dropped' = Dropped
    same_lane and same_queue and same_deliveries and same_link
}

pred put[p: Publish, told: Publish] {               // told: none, where the ledger has it and nobody can tell
    is_first[p, Pending] and told in p
    Stored' = Stored + p
    MarkedEntry' = (p in Stored => MarkedEntry else MarkedEntry + (p & Marked))
    Pending' = Pending - told and Confirmed' = Confirmed + told and Given' = Given and Dropped' = Dropped
    Sent' = Sent and Wire' = Wire and Received' = Received
    Marked' = (some told => Marked - p else Marked + (KeptAgainUnmarked in Planted => none else p))
    same_queue and same_deliveries and same_link
}

pred send_stored[p: Publish] {                      // by the outbox, in order
    some Up and is_first[p, Stored] and Pending' = Pending
    (arrives[p, MarkedEntry] and Stored' = Stored - p and MarkedEntry' = MarkedEntry - p)
    or ((arrives[p, MarkedEntry] or same_queue) and Stored' = Stored and MarkedEntry' = MarkedEntry + p)   // unknown
    same_client and same_upstream and same_deliveries and same_link
}

pred send_pending {                                 // the ledger takes nothing, and the broker has all that was stored
    some Up and no Stored and some Pending
    Sent' = Sent + Pending and Wire' = Wire + Pending and Received' = Received and Marked' = Marked
    no Pending' and Stored' = Stored and MarkedEntry' = MarkedEntry
    same_client and same_queue and same_deliveries and same_link
}

// ------------------------------------------------------------------------------------------------------- deliveries

fun next_tag: lone Tag { no Channel.newest => tags/first else Channel.newest.next }

pred deliver[m: Message, t: Tag] {
    some Up and m in Queued and m not in Tag.(Channel.outstanding) and t = next_tag
    outstanding' = outstanding + Channel -> t -> m and newest' = Channel -> t and held' = held + Channel -> t -> m
    same_messages and same_publishes and same_link
}

pred settle[t: Tag, upto: Tag] {                    // of one, or of all up to it; what is of a lost connection is passed over
    upto = t or upto = t + t.prevs
    some t.(Channel.held)
    Finished in Finished' and Finished' - Finished in upto.(Channel.held)
    all u: upto | some u.(Channel.held) implies some u.(Channel.held) & Finished'   // the client means one of each tag
    some Up => {
        Gone' = Gone + upto.(Channel.outstanding) and Queued' = Queued - upto.(Channel.outstanding)
        outstanding' = outstanding - Channel -> upto -> Message
    } else { Gone' = Gone and Queued' = Queued and outstanding' = outstanding }
    Redelivered' = Redelivered and newest' = newest and held' = held
    same_publishes and same_link
}

// ---------------------------------------------------------------------------------------------------- lost, restored

pred lose {
    some Up and no Up' and no Wire' and no Received'
    // store_sent; all of it stays with the channel where the ledger has no room, or the broker ended the connection
    (Channel.store = when_down and no Sent' and Pending' = Pending + Sent and Marked' = Marked + Sent)
    or (Sent' = Sent and Pending' = Pending and Marked' = Marked)
    Stored' = Stored and MarkedEntry' = MarkedEntry
    Redelivered' = Redelivered + Tag.(Channel.outstanding)
    Queued' = Queued and Finished' = Finished and Gone' = Gone
    no outstanding' and held' = held
    TagsReused in Planted => no newest' else newest' = newest      // void = newest
    same_client and same_queue
}

pred restore {                                      // what has no outcome is sent again in its order, marked
    no Up and Up' = Channel
    Sent' = Sent and Wire' = Sent and Received' = Received
    Marked' = Marked + (ResentUnmarked in Planted => none else Sent)
    same_client and same_lane and same_queue and same_deliveries
}

pred crash {                                        // of the gateway; the ledger stays, and the client's connection ends
    no Up' and no Sent' and no Wire' and no Received' and no Pending' and Marked' = Marked - Sent - Pending
    Dropped' = Dropped + (Sent + Pending - Confirmed) and Given' = Given and Confirmed' = Confirmed
    Stored' = Stored and MarkedEntry' = MarkedEntry
    Redelivered' = Redelivered + Tag.(Channel.outstanding)
    Queued' = Queued and Finished' = Finished and Gone' = Gone
    no outstanding' and no newest' and no held'
    same_queue
}

pred nothing { same_publishes and same_deliveries and same_link }

fact traces {
    init
    always (nothing or send_pending or lose or restore or crash
        or (some p: Publish | publish[p] or keep[p] or receive[p] or confirm[p] or send_stored[p])
        or (some p: Publish | put[p, p] or put[p, none])
        or (some m: Message, t: Tag | deliver[m, t])
        or (some t: Tag | settle[t, t] or settle[t, t + t.prevs]))
}

// --------------------------------------------------------------------------------------------------------- promises

pred confirmed_is_never_lost { always Confirmed in Arrived + Stored }
pred nothing_arrives_that_was_not_sent { always Arrived in Given }
pred each_duplicate_is_marked { always no UnmarkedTwice }
pred order_is_kept { always no Overtaken }
pred nothing_stays_in_doubt {          // what was given is confirmed, or somebody goes on with it
    always Given in Confirmed + Sent + Pending + Dropped
    always (some Up implies Sent in Wire + Received)
}
pred publishing_keeps_its_promises {
    confirmed_is_never_lost and nothing_arrives_that_was_not_sent and each_duplicate_is_marked and order_is_kept
    nothing_stays_in_doubt
}
pred only_what_was_finished_is_acknowledged { always Gone in Finished }
pred what_comes_again_is_marked {
    always all m: Message, t: Tag | deliver[m, t] and some Channel.held.m implies m in Redelivered
}

check right_publishes { no Planted implies publishing_keeps_its_promises }
    for exactly 2 Publish, exactly 0 Message, exactly 1 Tag, 10..10 steps expect 0
check right_deliveries { no Planted implies only_what_was_finished_is_acknowledged and what_comes_again_is_marked }
    for exactly 1 Publish, 2 Message, exactly 4 Tag, 9..9 steps expect 0

check wrong_resent_unmarked { Planted = ResentUnmarked implies each_duplicate_is_marked }
    for exactly 1 Publish, exactly 0 Message, exactly 1 Tag, 8..8 steps expect 1
check wrong_confirmed_before_stored { Planted = ConfirmedBeforeStored implies confirmed_is_never_lost }
    for exactly 1 Publish, exactly 0 Message, exactly 1 Tag, 8..8 steps expect 1
check wrong_newer_overtakes_stored { Planted = NewerOvertakesStored implies order_is_kept }
    for exactly 2 Publish, exactly 0 Message, exactly 1 Tag, 10..10 steps expect 1
check wrong_kept_again_unmarked { Planted = KeptAgainUnmarked implies each_duplicate_is_marked }
    for exactly 1 Publish, exactly 0 Message, exactly 1 Tag, 10..10 steps expect 1
check wrong_tags_reused { Planted = TagsReused implies only_what_was_finished_is_acknowledged }
    for exactly 1 Publish, 2 Message, exactly 4 Tag, 8..8 steps expect 1

// --------------------------------------------------------------------------------------- the model is not empty

run sent_again_after_the_loss_and_there_twice {
    no Planted and Channel.store = never
    eventually (some p: Publish | p in Unmarked and receive[p] and p in Marked)
} for exactly 2 Publish, exactly 0 Message, exactly 1 Tag, 8..8 steps expect 1
run stored_while_the_broker_is_away_and_all_arrive {
    no Planted and eventually (some Stored and after eventually (Publish = Arrived and Publish = Confirmed))
} for exactly 2 Publish, exactly 0 Message, exactly 1 Tag, 11..11 steps expect 1
run an_old_tag_is_passed_over_and_the_message_comes_again {
    no Planted
    eventually (some m: Message | m in Finished & Redelivered and m in Tag.(Channel.outstanding) and m not in Gone)
} for exactly 1 Publish, 1 Message, exactly 3 Tag, 8..8 steps expect 1
