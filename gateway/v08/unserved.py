"""The classes file, stream, dtx, tunnel and test of 0-8.

No broker that we know has one of them: the embedded broker answers 540, RabbitMQ 503, and Broker-J hangs up.
"""

from __future__ import annotations

from typing import Final

from gateway.classic.unserved import Unserved, unserved

UNSERVED: Final[Unserved] = unserved("""
class file 70: content-type shortstr, content-encoding shortstr, headers table, priority octet, reply-to shortstr,
    message-id shortstr, filename shortstr, timestamp longlong, cluster-id shortstr
file.qos 70.10 -> qos-ok: prefetch-size long, prefetch-count short, global bit
file.qos-ok 70.11
file.consume 70.20 -> consume-ok: ticket short, queue shortstr, consumer-tag shortstr, no-local bit, no-ack bit,
    exclusive bit, nowait bit
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
class stream 80: content-type shortstr, content-encoding shortstr, headers table, priority octet, timestamp longlong
stream.qos 80.10 -> qos-ok: prefetch-size long, prefetch-count short, consume-rate long, global bit
stream.qos-ok 80.11
stream.consume 80.20 -> consume-ok: ticket short, queue shortstr, consumer-tag shortstr, no-local bit, exclusive bit,
    nowait bit
stream.consume-ok 80.21: consumer-tag shortstr
stream.cancel 80.30 -> cancel-ok: consumer-tag shortstr, nowait bit
stream.cancel-ok 80.31: consumer-tag shortstr
stream.publish 80.40 content: ticket short, exchange shortstr, routing-key shortstr, mandatory bit, immediate bit
stream.return 80.50 content: reply-code short, reply-text shortstr, exchange shortstr, routing-key shortstr
stream.deliver 80.60 content: consumer-tag shortstr, delivery-tag longlong, exchange shortstr, queue shortstr
dtx.select 100.10 -> select-ok
dtx.select-ok 100.11
dtx.start 100.20 -> start-ok: dtx-identifier shortstr
dtx.start-ok 100.21
class tunnel 110: headers table, proxy-name shortstr, data-name shortstr, durable octet, broadcast octet
tunnel.request 110.10 content: meta-data table
test.integer 120.10 -> integer-ok: integer-1 octet, integer-2 short, integer-3 long, integer-4 longlong, operation
    octet
test.integer-ok 120.11: result longlong
test.string 120.20 -> string-ok: string-1 shortstr, string-2 longstr, operation octet
test.string-ok 120.21: result longstr
test.table 120.30 -> table-ok: table table, integer-op octet, string-op octet
test.table-ok 120.31: integer-result longlong, string-result longstr
test.content 120.40 content -> content-ok
test.content-ok 120.41 content: content-checksum long
""")
