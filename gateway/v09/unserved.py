"""The classes file, stream, dtx, tunnel and message of 0-9, and what it adds to channel.

No known broker serves them. The embedded broker answers 540.
"""

from __future__ import annotations

from typing import Final

from gateway.classic.unserved import Unserved, unserved

UNSERVED: Final[Unserved] = unserved("""
channel.resume 20.50 -> ok: channel-id longstr
channel.ping 20.60 -> ok
channel.pong 20.70 -> ok
channel.ok 20.80
class file 70: content-type shortstr, content-encoding shortstr, headers table, priority octet, reply-to shortstr,
    message-id shortstr, filename shortstr, timestamp timestamp, cluster-id shortstr
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
class stream 80: content-type shortstr, content-encoding shortstr, headers table, priority octet, timestamp timestamp
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
dtx.select 100.10 -> select-ok
dtx.select-ok 100.11
dtx.start 100.20 -> start-ok: dtx-identifier shortstr
dtx.start-ok 100.21
class tunnel 110: headers table, proxy-name shortstr, data-name shortstr, durable octet, broadcast octet
tunnel.request 110.10 content: meta-data table
message.transfer 120.10 -> ok reject: ticket short, destination shortstr, redelivered bit, immediate bit, ttl
    longlong, priority octet, timestamp timestamp, delivery-mode octet, expiration timestamp, exchange shortstr,
    routing-key shortstr, message-id shortstr, correlation-id shortstr, reply-to shortstr, content-type shortstr,
    content-encoding shortstr, user-id shortstr, app-id shortstr, transaction-id shortstr, security-token longstr,
    application-headers table, body longstr
message.consume 120.20 -> ok: ticket short, queue shortstr, destination shortstr, no-local bit, no-ack bit, exclusive
    bit, filter table
message.cancel 120.30 -> ok: destination shortstr
message.get 120.40 -> ok empty: ticket short, queue shortstr, destination shortstr, no-ack bit
message.recover 120.50 -> ok: requeue bit
message.open 120.60 -> ok: reference longstr
message.close 120.70 -> ok: reference longstr
message.append 120.80 -> ok: reference longstr, bytes longstr
message.checkpoint 120.90 -> ok: reference longstr, identifier shortstr
message.resume 120.100 -> offset: reference longstr, identifier shortstr
message.qos 120.110 -> ok: prefetch-size long, prefetch-count short, global bit
message.ok 120.500
message.empty 120.510
message.reject 120.520: code short, text shortstr
message.offset 120.530: value longlong
""")
