"""What a person does in the console, each as it is done there: with a mouse, a keyboard, or a link."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

import pika
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.console.conftest import BROKER, Open, Served, key_of, wait_until


def test_1_sees_what_is_wrong_and_why(open_console: Open, served: Served) -> None:
    served.queue("overview")
    served.call("PUT", "/v1/subscriptions/watched", {"broker": BROKER, "queue": "overview"})
    served.call("POST", "/v1/subscriptions/watched:pause")
    page = open_console("me")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url.partition("/v1/")[2].partition("?")[0]))
    page.goto(f"{served.url}/console#/")
    trouble = page.locator(".troubles li", has_text="watched")
    expect(trouble).to_contain_text("paused")
    expect(trouble).to_contain_text("Somebody paused it.")
    assert set(filter(None, asked)) <= {"overview", "statistics", "caller"}
    trouble.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("watched")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator(".lead .state")).to_have_text("active")


def test_2_finds_a_queue_by_three_letters(open_console: Open, served: Served) -> None:
    served.queue("billing-eu")
    served.queue("billing-us")
    served.publish("billing-eu", "one")
    page = open_console()
    page.keyboard.press("g")
    page.keyboard.press("q")
    page.get_by_role("region", name="Queues").wait_for()
    page.keyboard.press("/")
    page.keyboard.type("g-e")
    row = page.locator("tbody tr", has_text="billing-eu").first
    expect(row).to_contain_text("1")
    expect(page.locator("tbody")).not_to_contain_text("billing-us")
    assert "q=g-e" in page.url
    row.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("billing-eu")
    expect(page.locator(".tile").first).to_contain_text("1")


def test_2_sees_who_holds_messages_and_since_when(open_console: Open, served: Served) -> None:
    served.queue("held")
    served.call("PUT", "/v1/subscriptions/holder", {"broker": BROKER, "queue": "held"})
    served.publish("held", "one")
    served.call("POST", "/v1/subscriptions/holder:pull", {"wait_seconds": 5})
    page = open_console(f"queues/{BROKER}/held")
    row = of_region(page, "Who holds unacknowledged messages").locator("tbody tr")
    expect(row).to_contain_text("holder")
    expect(row).to_contain_text("root")
    expect(row).to_contain_text("ago")
    row.get_by_role("link").click()
    expect(page.locator("h1")).to_have_text("holder")


def test_3_looking_into_a_queue_takes_nothing(open_console: Open, served: Served) -> None:
    served.queue("looked-at")
    headers = {"priority": {"type": "int16", "value": 3}, "order": "looked"}
    served.publish("looked-at", {"here": [1, 2]}, headers=headers, properties={"message_id": "looked-1"})
    served.publish("looked-at", "AP8=", payload_encoding="base64")
    page = open_console(f"queues/{BROKER}/looked-at")
    page.get_by_role("link", name="Show its messages").click()
    rows = of_region(page, "Messages").locator("tbody tr")
    expect(rows).to_have_count(2)
    expect(page.locator("main")).to_contain_text("Looking changes nothing.")
    rows.nth(0).get_by_role("link").click()
    one = page.get_by_role("region", name="Message 1")
    expect(one.locator(".body pre")).to_contain_text('{"here":[1,2]}')
    one.get_by_role("button", name="JSON").click()
    expect(one.locator(".body pre")).to_contain_text('"here": [')
    expect(one.get_by_label("Headers")).to_contain_text('"type": "int16"')
    expect(one.get_by_label("Properties")).to_contain_text("looked-1")
    rows.nth(1).get_by_role("link").click()
    two = page.get_by_role("region", name="Message 2")
    expect(two.locator(".body pre")).to_contain_text("00 ff")
    page.get_by_role("button", name="Look again").click()
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("no")
    assert served.call("GET", f"/v1/brokers/{BROKER}/queues/looked-at")["messages"] == 2
    page.get_by_role("link", name="Messages published to this queue").click()
    page.locator("tbody a").first.click()
    expect(page.locator(".story")).to_contain_text("confirmed")


def test_4_publishes_a_message_and_another_like_it(open_console: Open, served: Served) -> None:
    served.queue("typed")
    page = open_console(f"publish?broker={BROKER}&routing_key=typed")
    page.get_by_label("Body", exact=True).fill('{"total": 3}')
    page.get_by_label("Properties (JSON)").fill('{"message_id": "typed-1"')
    expect(page.locator(".wrong")).to_contain_text("not JSON")
    page.get_by_label("Properties (JSON)").fill('{"message_id": "typed-1"}')
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".result")).to_contain_text("The broker has it")
    page.get_by_role("link", name="its story").click()
    page.get_by_role("button", name="Publish one like it").click()
    expect(page.get_by_label("Properties (JSON)")).to_have_value(re.compile("typed-1"))
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.locator(".result")).to_contain_text("The broker has it")
    assert served.call("GET", f"/v1/brokers/{BROKER}/queues/typed")["messages"] == 2


def test_4_a_link_to_publish_says_where_whatever_was_typed_before(open_console: Open, served: Served) -> None:
    for name in ("first-place", "second-place"):
        served.queue(name)
    page = open_console(f"publish?broker={BROKER}&exchange=amq.default&routing_key=first-place")
    page.get_by_label("Body", exact=True).fill("kept")
    page.get_by_label("Routing key").fill("elsewhere")
    page.evaluate(f"location.hash = '#/queues/{BROKER}/second-place'")
    page.locator("main").get_by_role("link", name="Publish", exact=True).click()
    expect(page.get_by_label("Routing key")).to_have_value("second-place")
    expect(page.get_by_label("Body", exact=True)).to_have_value("kept")
    page.get_by_label("Routing key").fill("elsewhere")
    page.get_by_role("navigation", name="Views").get_by_role("link", name="Publish").click()
    expect(page.get_by_label("Routing key")).to_have_value("elsewhere")


def test_4_a_mistake_stands_beside_its_field(open_console: Open, served: Served) -> None:
    page = open_console(f"publish?broker={BROKER}&routing_key=nowhere-at-all")
    page.get_by_label("Body", exact=True).fill("kept")
    page.get_by_role("button", name="Publish", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("queue")
    expect(page.get_by_label("Body", exact=True)).to_have_value("kept")


def test_5_finds_a_message_by_its_publishers_id_and_by_its_own(open_console: Open, served: Served) -> None:
    served.queue("found")
    id = served.publish("found", "x", properties={"message_id": "order-4711"}, headers={"order": "4711"})
    page = open_console("messages")
    page.get_by_label("Id of the gateway").fill("order-4711")
    page.get_by_role("button", name="Find").click()
    page.locator("tbody a").first.click()
    expect(page.locator("h1")).to_have_text(id)
    page.goto(f"{served.url}/console#/messages?header=order%3D4711")
    page.reload()
    page.get_by_label("API key or token").fill(key_of("root"))
    page.get_by_role("button", name="Log in").click()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_5_a_publishers_uuid_is_not_taken_for_the_gateways_id(open_console: Open, served: Served) -> None:
    served.queue("uuids")
    foreign = "4f6d3c5e-7b1a-4c2d-9e8f-0a1b2c3d4e5f"
    id = served.publish("uuids", "x", properties={"message_id": foreign})
    page = open_console("messages")
    find = page.get_by_label("Id of the gateway")
    find.fill(id)
    find.press("Enter")
    expect(page.locator("h1")).to_have_text(id)
    page.go_back()
    find.fill(foreign)
    find.press("Enter")
    expect(page).to_have_url(re.compile(f"search\\?q={foreign}$"))
    of_region(page, "Messages").locator("tbody a").click()
    expect(page.locator("h1")).to_have_text(id)


@pytest.mark.parametrize(
    ("view", "label", "read"), [("messages", "Routing key", "messages?"), ("audit", "On which path", "audit?")]
)
def test_5_what_is_half_typed_stays_when_the_list_is_read_again(
    open_console: Open, served: Served, view: str, label: str, read: str
) -> None:
    page = open_console(view)
    page.locator("tbody").wait_for()
    field = page.get_by_label(label, exact=True)
    field.press_sequentially("half")
    for number in range(2):
        with page.expect_response(lambda response: f"/v1/{read}" in response.url):
            served.queue(f"half-{number}")
            served.publish(f"half-{number}", "x")  # what is read again is another answer
    page.wait_for_timeout(300)
    expect(field).to_have_value("half")
    field.press("Enter")
    expect(page).to_have_url(re.compile(r"=half$"))


def test_5_what_is_half_typed_stays_while_events_come(open_console: Open, served: Served) -> None:
    served.queue("streaming")
    page = open_console("events")
    expect(page.get_by_role("status").first).to_be_visible()
    field = page.get_by_label("Kind", exact=True)
    field.press_sequentially("conf")
    served.publish("streaming", "x")
    expect(page.locator("tbody")).to_contain_text("confirmed")
    field.press_sequentially("irmed")
    field.press("Enter")
    expect(page).to_have_url(re.compile("kind=confirmed"))


def test_5_a_time_is_typed_as_it_is_shown(open_console: Open, served: Served) -> None:
    served.queue("timed")
    served.publish("timed", "x")
    page = open_console("messages?routing_key=timed")
    page.get_by_label("Since").fill("2001-02-03 04:05")
    page.get_by_label("Since").press("Enter")
    expect(page).to_have_url(re.compile(r"since=2001-02-0\dT\d\d%3A05%3A00.000Z"))
    expect(page.get_by_label("Since")).to_have_value("2001-02-03 04:05:00")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.locator("summary", has_text="More filters").click()
    page.get_by_label("Until").fill("2001-02-04")
    page.get_by_label("Until").press("Enter")
    expect(page.locator("main .empty")).to_contain_text("No message matches.")


def test_5_what_a_refused_filter_had_found_before_is_not_shown(open_console: Open, served: Served) -> None:
    served.queue("asked")
    served.publish("asked", "x")
    page = open_console("messages?routing_key=asked")
    expect(page.locator("tbody tr")).to_have_count(1)
    page.get_by_label("Header").fill("no-such-header=1")
    page.get_by_label("Header").press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("no-such-header")
    expect(page.locator("tbody")).to_have_count(0)


def test_5_searches_names_and_messages_in_one_box(open_console: Open, served: Served) -> None:
    served.queue("needle-queue")
    served.call("PUT", "/v1/endpoints/needle", {"url": served.endpoint})
    served.call("PUT", "/v1/subscriptions/needle", {"broker": BROKER, "queue": "needle-queue"})
    id = served.publish("needle-queue", "x", properties={"message_id": "needle"}, headers={"order": "needle"})
    page = open_console()
    page.keyboard.press("/")
    expect(page.get_by_label("Search everything")).to_be_focused()
    page.keyboard.type("needle")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("search.q=needle"))
    names = of_region(page, "Names").locator("tbody")
    for kind in ("Queue", "Endpoint", "Subscription"):
        expect(names.locator("tr", has_text=kind).first).to_contain_text("needle")
    messages = of_region(page, "Messages").locator("tbody tr")
    expect(messages).to_have_count(1)
    expect(messages).to_contain_text("message_id")
    gaps = page.locator("details.more")
    gaps.locator("summary").click()
    expect(gaps).to_contain_text("AMQP cannot list exchanges")
    page.get_by_label("Search everything").fill("order=needle")
    page.keyboard.press("Enter")
    expect(messages).to_have_count(1)
    expect(messages).to_contain_text("header")
    page.get_by_label("Search everything").fill("NEEDLE-q")
    page.keyboard.press("Enter")
    names.locator("a", has_text="needle-queue").click()
    expect(page).to_have_url(re.compile(f"queues/{BROKER}/needle-queue$"))
    page.goto(f"{served.url}/console#/search?q=needle-queue")
    messages.locator("a").first.click()
    expect(page.locator("h1")).to_have_text(id)
    page.goto(f"{served.url}/console#/search")
    page.get_by_label("Search everything").fill(id)
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(id)


def test_5_what_comes_while_a_search_is_open_is_found(open_console: Open, served: Served) -> None:
    page = open_console("search?q=late-comer")
    names = of_region(page, "Names")
    expect(page.locator("main")).to_contain_text("No name contains it.")
    served.queue("late-comer")
    expect(names.locator("tbody a", has_text="late-comer")).to_be_visible()
    messages = of_region(page, "Messages")
    expect(messages.locator("tbody tr")).to_have_count(0)
    served.publish("late-comer", "x")
    page.get_by_label("Search everything").press("Enter")
    expect(messages.locator("tbody tr")).to_have_count(1)


def test_5_a_search_says_what_the_key_may_not_list(open_console: Open, served: Served) -> None:
    page = open_console("search?q=no-such-thing", client="reader")
    expect(page.locator("details.more")).to_contain_text("Bridge: Your credential lacks the scope admin.")
    expect(of_region(page, "Names")).to_have_count(0)
    expect(page.locator("main")).to_contain_text("No name contains it.")


def test_6_answers_why_it_is_stuck_and_helps(open_console: Open, served: Served) -> None:
    served.queue("stuck")
    served.call("PUT", "/v1/endpoints/stuck", {"url": served.endpoint})
    served.call("POST", "/v1/endpoints/stuck:pause")
    served.call("PUT", "/v1/subscriptions/stuck", {"broker": BROKER, "queue": "stuck", "push": "stuck"})
    id = served.publish("stuck", "waits")
    page = open_console(f"messages/{id}")
    expect(page.locator(".why")).to_contain_text("The endpoint stuck")
    page.get_by_role("button", name="Resume stuck").click()
    expect(page.locator(".story")).to_contain_text("acknowledged")


def dead_of(served: Served, name: str) -> int:
    found = served.call("GET", f"/v1/deliveries?state=dead&subscription={name}")["deliveries"]
    return len(found)


def of_region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def test_7_redrives_dead_letters_one_some_and_all(open_console: Open, served: Served) -> None:
    served.dead_letters("invoices", 6)
    page = open_console("dead")
    row = of_region(page, "Dead letters by reason").locator("tbody tr", has_text="invoices")
    expect(row).to_contain_text("a consumer rejected it")
    expect(row).to_contain_text("6")
    row.get_by_role("link", name="rejected").click()
    expect(page).to_have_url(re.compile(r"code=rejected&subscription=invoices"))
    listed = of_region(page, "Dead letters").locator("tbody")
    listed.locator("a").first.click()
    expect(page.locator(".body pre")).to_contain_text("dead 5")
    page.get_by_role("button", name="Redrive").click()
    wait_until(lambda: dead_of(served, "invoices") == 5, page)
    page.goto(f"{served.url}/console#/dead?subscription=invoices&code=rejected")
    expect(listed.locator("tr")).to_have_count(5)
    for box in listed.locator("input[type=checkbox]").all()[:2]:
        box.check()
    page.locator(".selection").get_by_role("button", name="Redrive").click()
    page.locator("dialog").get_by_role("button", name="Redrive").click()
    expect(page.locator(".lead")).to_contain_text("done")
    expect(page.locator(".facts")).to_contain_text("2")
    assert dead_of(served, "invoices") == 3
    page.goto(f"{served.url}/console#/dead?subscription=invoices")
    page.get_by_role("button", name="Redrive all").click()
    expect(page.locator("dialog")).to_contain_text("3 dead letters of invoices")
    page.locator("dialog").get_by_role("button", name="Redrive").click()
    expect(page.locator(".lead")).to_contain_text("done")
    assert dead_of(served, "invoices") == 0


def test_7_deleting_all_needs_the_name_and_is_a_job(open_console: Open, served: Served) -> None:
    served.dead_letters("doomed", 2)
    page = open_console("dead?subscription=doomed")
    page.get_by_role("button", name="Delete all").click()
    button = page.locator("dialog").get_by_role("button", name="Delete")
    expect(button).to_be_disabled()
    page.get_by_label("To confirm, type").fill("doomed")
    button.click()
    expect(page.locator(".lead")).to_contain_text("done")
    expect(page.locator(".facts")).to_contain_text("Deleted")
    assert dead_of(served, "doomed") == 0


def test_7_a_job_is_cancelled(open_console: Open, served: Served) -> None:
    served.dead_letters("slow", 3)
    body = {"id": "slow-job", "source": {"deliveries": {"subscription": "slow"}}, "rate": 0.02}
    served.call("POST", "/v1/replays", body)
    page = open_console("replays/slow-job")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_label("To confirm, type").fill("slow-job")
    page.locator("dialog").get_by_role("button", name="Cancel the replay").click()
    expect(page.locator(".lead")).to_contain_text("cancelled")
    assert dead_of(served, "slow") >= 1


def test_8_watches_a_bridge_and_steers_it(open_console: Open, served: Served) -> None:
    served.queue("old")
    served.queue("new")
    page = open_console("bridges/new")
    page.get_by_label("Name*").fill("move-old")
    page.locator("#field-source-broker").fill(BROKER)
    page.locator("#field-source-queue").fill("old")
    page.locator("#field-target-broker").fill("no-such-broker")
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_role("alert").first).to_contain_text("no-such-broker")
    page.locator("#field-target-broker").fill("local-0-10")
    page.locator("#field-target-routing-key").fill("new")
    expect(page.locator(".same")).to_contain_text("[bridges.move-old.source]")
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".lead .state")).to_have_text("running")
    served.publish("old", "across")
    expect(page.locator(".facts div", has_text="Forwarded")).to_contain_text("1")
    assert served.call("GET", f"/v1/brokers/{BROKER}/queues/new")["messages"] == 1
    page.get_by_role("button", name="Pause", exact=True).click()
    expect(page.locator(".lead .state")).to_have_text("paused")
    page.get_by_role("button", name="Compare by the ledger").click()
    expect(page.locator("main")).to_contain_text("Both sides are equal.")
    page.get_by_role("button", name="Delete").click()
    page.get_by_label("To confirm, type").fill("move-old")
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text("Bridges")


def test_9_sees_an_endpoints_attempts_tests_it_and_rotates_its_key(open_console: Open, served: Served) -> None:
    served.queue("pushed")
    served.call("PUT", "/v1/endpoints/hook", {"url": served.endpoint})
    served.call("PUT", "/v1/subscriptions/pushed", {"broker": BROKER, "queue": "pushed", "push": "hook"})
    served.publish("pushed", "to the hook")
    page = open_console("endpoints/hook")
    page.get_by_role("button", name="Send a test").click()
    expect(page.locator(".result")).to_contain_text("204")
    tops = page.locator(".actions > button, .actions > a").evaluate_all(
        "all => all.map((each) => Math.round(each.getBoundingClientRect().top))"
    )
    assert len(set(tops)) == 1, "its buttons stay together"
    attempts = of_region(page, "Last attempts")
    expect(attempts).to_contain_text("delivered")
    expect(attempts.locator("tbody tr")).to_have_count(2)
    attempts.locator("tbody tr", has_text="pushed").locator("a").first.click()
    expect(page).to_have_url(re.compile(r"endpoints/hook/attempts/"))
    request = page.get_by_label("Request", exact=True)
    expect(request).to_contain_text("webhook-id: ")
    expect(request).to_contain_text("webhook-signature: [redacted]")
    expect(page.locator(".facts")).to_contain_text("204")
    page.locator("section .plain a").first.click()
    page.get_by_role("link", name="Request and answer").first.click()
    expect(page).to_have_url(re.compile(r"endpoints/hook\?message="))
    expect(attempts.locator("tbody tr")).to_have_count(1)
    page.goto(f"{served.url}/console#/endpoints/hook")
    page.get_by_role("button", name="Rotate keys").click()
    page.locator("dialog").get_by_role("button", name="Rotate keys").click()
    expect(page.locator(".result")).to_contain_text("whsec_")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("main")).to_contain_text("would be sent")


def test_10_schedules_a_message_and_cancels_it(open_console: Open, served: Served) -> None:
    served.queue("later")
    page = open_console(f"publish?broker={BROKER}&routing_key=later")
    page.get_by_label("Body", exact=True).fill("tomorrow")
    page.get_by_label("Delay in seconds").fill("86400")
    page.get_by_role("button", name="Publish later").click()
    expect(page.locator(".result")).to_contain_text("The ledger has it.")
    page.locator(".result").get_by_role("link").click()
    row = page.locator("tbody tr", has_text="later")
    expect(row).to_contain_text("scheduled")
    then = datetime.now(UTC) + timedelta(days=20)  # typed, and shown, as a time of the browser's zone
    row.get_by_role("button", name="Change the time").click()
    page.get_by_label("Publish it at").fill("2026-01-01T10:00:00")
    expect(page.locator("dialog .same")).to_contain_text("gateway scheduled move")
    page.get_by_label("Publish it at").fill("9999-01-01T10:00:00")
    page.locator("dialog").get_by_role("button", name="Save").click()
    expect(page.locator("dialog").get_by_role("alert")).to_contain_text("more than a year")
    page.get_by_label("Publish it at").fill(f"{then:%Y-%m-%dT%H:%M:%S}")
    page.locator("dialog").get_by_role("button", name="Save").click()
    expect(row).to_contain_text(f"{then:%Y-%m-%d}")
    row.get_by_role("button", name="Cancel").click()
    page.locator("dialog").get_by_role("button", name="Cancel the message").click()
    expect(page.locator("tbody tr", has_text="later")).to_have_count(0)


def test_11_creates_and_changes_a_subscription(open_console: Open, served: Served) -> None:
    served.queue("formed")
    page = open_console("subscriptions/new")
    page.get_by_label("Name*").fill("formed")
    page.locator("#field-broker").fill(BROKER)
    page.locator("#field-queue").fill("formed")
    page.locator("summary", has_text="More settings").click()
    page.locator("#field-max-deliveries").fill("3")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("form .wrong, form .problem").first).to_contain_text("lease")
    page.locator("#field-lease").select_option("ledger")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_have_text("formed")
    page.get_by_role("link", name="Edit").click()
    page.locator("summary", has_text="More settings").click()
    page.locator("#field-max-deliveries").fill("5")
    page.get_by_role("button", name="Save").click()
    expect(page.locator("h1")).to_have_text("formed")
    assert served.call("GET", "/v1/subscriptions/formed")["max_deliveries"] == 5


def test_12_makes_and_revokes_a_key_and_reads_who_did_it(open_console: Open, served: Served) -> None:
    page = open_console("keys")
    page.get_by_role("button", name="Make a key").click()
    page.locator("#key-client").fill("night-shift")
    page.locator("#key-scopes").fill("nonsense")
    page.locator("dialog").get_by_role("button", name="Make a key").click()
    expect(page.locator("dialog").get_by_role("alert").first).to_contain_text("nonsense")
    page.locator("#key-scopes").fill("history")
    page.locator("dialog").get_by_role("button", name="Make a key").click()
    secret = page.locator(".secret code").inner_text()
    page.get_by_role("button", name="I have it").click()

    other = open_console(client="")
    other.get_by_label("API key or token").fill(secret)
    other.get_by_role("button", name="Log in").click()
    expect(other.get_by_role("navigation", name="Views")).to_contain_text("Messages")

    row = page.locator("tbody tr", has_text="night-shift")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_label("To confirm, type").fill("night-shift")
    page.locator("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    expect(other.locator("dialog")).to_contain_text("no longer counts")

    page.goto(f"{served.url}/console#/audit?action=revoke_key")
    expect(page.locator("tbody tr").first).to_contain_text("root")


def test_an_exchange_has_a_page(open_console: Open, served: Served) -> None:
    served.queue("copies")
    page = open_console(f"brokers/{BROKER}")
    page.get_by_role("link", name="Declare an exchange").click()
    page.get_by_label("Name*").fill("sales.events")
    page.locator("#field-type").fill("topic")
    page.get_by_role("button", name="Declare an exchange").click()
    expect(page).to_have_url(re.compile(f"exchanges/{BROKER}/sales.events$"))
    expect(page.locator(".facts").first).to_contain_text("topic")
    page.locator("summary", has_text="Bind a queue").click()
    page.get_by_label("Name", exact=True).fill("nothing-of-that-name")
    page.get_by_label("Binding key").fill("sale.#")
    page.get_by_role("button", name="Bind", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("nothing-of-that-name")
    page.get_by_label("Name", exact=True).fill("copies")
    page.get_by_role("button", name="Bind", exact=True).click()
    row = of_region(page, "Where its messages go").locator("tbody tr")
    expect(row).to_contain_text("sale.#")
    page.get_by_role("link", name="Publish", exact=True).last.click()
    expect(page.get_by_label("Exchange", exact=True)).to_have_value("sales.events")
    page.goto(f"{served.url}/console#/search?q=SALES.e")
    of_region(page, "Names").get_by_role("link", name="sales.events").click()
    row.get_by_role("link", name="copies").click()
    expect(page.locator("h1")).to_have_text("copies")
    of_region(page, "Where its messages come from").get_by_role("link", name="sales.events").click()
    row.get_by_role("button", name="Unbind").click()
    page.locator("dialog").get_by_role("button", name="Unbind").click()
    expect(row).to_have_count(0)
    page.get_by_role("button", name="Delete").click()
    page.get_by_label("To confirm, type").fill("sales.events")
    page.locator("dialog").get_by_role("button", name="Delete").click()
    expect(page.locator("h1")).to_have_text(BROKER)
    expect(page.get_by_role("link", name="Declare an exchange")).to_be_visible()
    expect(page.get_by_role("link", name="sales.events")).to_have_count(0)


def test_a_front_has_a_page_and_its_clients_are_disconnected(open_console: Open, served: Served) -> None:
    login = pika.PlainCredentials("till", "till")
    client = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", served.front_port, credentials=login))
    page = open_console("search?q=legac")
    of_region(page, "Names").locator("tr", has_text="Front").get_by_role("link").click()
    expect(page).to_have_url(re.compile("fronts/legacy$"))
    row = of_region(page, "Clients").locator("tbody tr")
    expect(row).to_contain_text("till")
    expect(row).to_contain_text("0-9-1")
    row.get_by_role("button", name="Disconnect").click()
    page.get_by_label("To confirm, type").fill("till")
    page.locator("dialog").get_by_role("button", name="Disconnect").click()
    expect(row).to_have_count(0)
    with pytest.raises(pika.exceptions.ConnectionClosedByBroker):
        client.process_data_events(5)
    page.keyboard.press("g")
    page.keyboard.press("f")
    expect(of_region(page, "Fronts").locator("tbody tr")).to_contain_text(f"127.0.0.1:{served.front_port}")
