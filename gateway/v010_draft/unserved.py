"""The methods of the classes that our sessions do not serve: 540 answers them."""

from __future__ import annotations

from typing import Final

from gateway.classic.unserved import Unserved, unserved

UNSERVED: Final[Unserved] = unserved("""
basic.qos 60.10: prefetch-size long, prefetch-count short, global bit
basic.consume 60.20 -> consume-ok: ticket short, queue shortstr, consumer-tag shortstr, no-local bit, no-ack bit,
    exclusive bit, nowait bit, arguments table
basic.consume-ok 60.21: consumer-tag shortstr
basic.cancel 60.30 -> cancel-ok: consumer-tag shortstr, nowait bit
basic.cancel-ok 60.31: consumer-tag shortstr
basic.publish 60.40 content: ticket short, exchange shortstr, routing-key shortstr, reject-unroutable bit, immediate
    bit
basic.deliver 60.60 content: consumer-tag shortstr, delivery-tag longlong, redelivered bit, exchange shortstr,
    routing-key shortstr
basic.get 60.70 -> get-ok get-empty: ticket short, queue shortstr, no-ack bit
basic.get-ok 60.71 content: delivery-tag longlong, redelivered bit, exchange shortstr, routing-key shortstr,
    message-count long
basic.get-empty 60.72: cluster-id shortstr
basic.ack 60.80: delivery-tag longlong, multiple bit
basic.reject 60.90: delivery-tag longlong, requeue bit
basic.recover 60.100: requeue bit
file.qos 70.10 -> qos-ok: prefetch-size long, prefetch-count short, global bit
file.qos-ok 70.11
file.consume 70.20 -> consume-ok: ticket short, queue shortstr, consumer-tag shortstr, no-local bit, no-ack bit,
    exclusive bit, nowait bit, filter table
file.consume-ok 70.21: consumer-tag shortstr
file.cancel 70.30 -> cancel-ok: consumer-tag shortstr, nowait bit
file.cancel-ok 70.31: consumer-tag shortstr
file.open 70.40 -> open-ok: identifier shortstr, content-size longlong
file.open-ok 70.41 -> stage: staged-size longlong
file.stage 70.50 content
file.publish 70.60: ticket short, exchange shortstr, routing-key shortstr, mandatory bit, immediate bit, identifier
    shortstr
file.return 70.70 content: reply-code short, reply-text shortstr, exchange shortstr, routing-key shortstr
file.deliver 70.80: consumer-tag shortstr, delivery-tag longlong, redelivered bit, exchange shortstr, routing-key
    shortstr, identifier shortstr
file.ack 70.90: delivery-tag longlong, multiple bit
file.reject 70.100: delivery-tag longlong, requeue bit
stream.qos 80.10 -> qos-ok: prefetch-size long, prefetch-count short, consume-rate long, global bit
stream.qos-ok 80.11
stream.consume 80.20 -> consume-ok: ticket short, queue shortstr, consumer-tag shortstr, no-local bit, exclusive bit,
    nowait bit, filter table
stream.consume-ok 80.21: consumer-tag shortstr
stream.cancel 80.30 -> cancel-ok: consumer-tag shortstr, nowait bit
stream.cancel-ok 80.31: consumer-tag shortstr
stream.publish 80.40 content: ticket short, exchange shortstr, routing-key shortstr, mandatory bit, immediate bit
stream.return 80.50 content: reply-code short, reply-text shortstr, exchange shortstr, routing-key shortstr
stream.deliver 80.60 content: consumer-tag shortstr, delivery-tag longlong, exchange shortstr, queue shortstr
dtx-demarcation.select 100.10
dtx-demarcation.start 100.20 -> start-ok: ticket short, xid longstr, join bit, resume bit
dtx-demarcation.start-ok 100.21: status short
dtx-demarcation.end 100.30 -> end-ok: ticket short, xid longstr, fail bit, suspend bit
dtx-demarcation.end-ok 100.31: status short
dtx-coordination.commit 105.10 -> commit-ok: ticket short, xid longstr, one-phase bit
dtx-coordination.commit-ok 105.11: status short
dtx-coordination.forget 105.20: ticket short, xid longstr
dtx-coordination.get-timeout 105.30 -> get-timeout-ok: xid longstr
dtx-coordination.get-timeout-ok 105.31: timeout long
dtx-coordination.prepare 105.40 -> prepare-ok: ticket short, xid longstr
dtx-coordination.prepare-ok 105.41: status short
dtx-coordination.recover 105.50 -> recover-ok: ticket short, startscan bit, endscan bit
dtx-coordination.recover-ok 105.51: in-doubt table
dtx-coordination.rollback 105.60 -> rollback-ok: ticket short, xid longstr
dtx-coordination.rollback-ok 105.61: status short
dtx-coordination.set-timeout 105.70: ticket short, xid longstr, timeout long
tunnel.request 110.10 content: meta-data table
""")
