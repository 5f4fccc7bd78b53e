"""The continuation gateway: a streamed answer that breaks off is continued, and its client gets one unbroken answer.

The way of a request
--------------------

    request -> views -> plan (strategy pinned) -> relay <-> splice
      leg 1 is opened -> bytes -> events -> read along -> forwarded as received
      leg 1 fails -> decision -> body of leg 2 -> leg 2 -> seam -> events in leg 1's identity
      beside it: the resume log (before anything is sent), the audit, the metrics

All that is hard is decided in `splice`, a state machine without sockets, clocks, database or Django. `relay` performs
what it asks for, and is the only loop of the request path that awaits.

The map
-------

    views           the edge: a chat request is parsed, planned and answered; all else is passed through
    wiring          settings become the parts that a relay needs
    lifecycle       what a process has once, from its start to its end
    plan            a request is guarded with a strategy, or passed through for a reason; pure
    relay           the one loop that awaits
    patience        a deadline that forgives an event loop which was held up itself
    vocabulary      failures, cases, decisions, routes, outcomes, reasons; pure
    http            a request as it came in; headers, answers and their endings
    downstream      the client of the router: connections, transport, troubles
    shapes          what an API looks like on the wire: server-sent events, chat completions; pure
    splice          the machine: phases, legs, decision, seam, bill, endings, the record of a stream; pure
    token_route     leg 2 by token ids
    resume          numbered events, their log and its stores, coming back, takeover
    audit           rows of streams, their writer, how long they stay
    metrics         what Prometheus reads
    verification    a strategy is measured on a live engine
    testbed         simulator, demo, drill; no part of the request path
    clients         the client in Python that comes back for the rest
    health          /health and /ready
    playground      the admin's page on which streams are broken by hand
    admin, models, checks, apps, urls, migrations, management, templates, static     as in any Django application

`strategies`, beside this package, has the rows and how a body is built from them; it imports nothing from here.
`gatewaysite` has settings, the ASGI application and the server.

The words
---------

Of a stream:

    downstream      the router, or engine, that requests go to; a client is the other side
    leg             a request to downstream and its answer. Leg 1 is the client's own request, leg 2 the one
                    continuation; there is no third
    partial         reasoning and content that were delivered to the client before leg 1 failed
    event           one block of server-sent events, up to its blank line
    chunk           an event's JSON
    piece           a part of a text that came in one chunk; of leg 2, with the tokens it was written in. In the
                    resume log: a part of an event too large for one entry
    seam            the place where leg 2's text joins the partial, and the stages that join it
    splice          the machine that makes one answer out of at most two legs
    finish          a finish_reason; an answer that has one is whole
    ending          what follows the finish: usage and [DONE]
    failed ending   one error event, and no [DONE]
    news            what resets the idle clock: an event that brings text, a call, ids, or a finish
    shelf           where events from the first tool call on lie until the calls are whole, when they are buffered
    unframed        in the middle of an event that is too large to be read; its bytes are forwarded
    carried ids     token ids that leg 1 reported, and leg 2 continues
    budget          tokens that the request's own limit leaves for leg 2
    shape           what an API looks like on the wire
    record          what the audit gets of one stream

Of strategies:

    strategy        how a partial is written for one model on one engine: a row, compiled to a frozen value
    book            all enabled strategies, compiled at one revision. A request keeps the strategy it began with
    book shelf      where a process holds the last good book
    revision        a number in the database that rises with each edit of a strategy
    served name     what clients send as `model` for a strategy's model
    OPEN, CLOSE, CONTENT_OPEN    control tokens before and after the reasoning, and before the content

Of coming back:

    generation      a relay that goes on without its client, and writes into a log
    log             the numbered events of one resumable stream
    entry           one event in a log, or a piece of it
    cursor          the place after an entry, from which a reader reads on
    store           where logs are: in memory, or in Redis too
    hot log         a log in the memory of the process that runs its stream
    ledger          what of the hot logs is written into Redis next, and what its answers mean
    pump            what sends that, behind the streams and never in their way
    owner, epoch    which process a stream in Redis is of, and in which of its ownerships, counted up by each new one.
                    A process that writes with an older epoch has lost the stream
    lease           how long a process owns a stream in Redis without renewing that
    claim           a process asks Redis for a stream whose owner has gone; one process gets it
    takeover        a stream whose process has gone is continued by another
    grace           how long a generation goes on without a reader

Of verification and drills:

    door            the endpoints of the engine that is verified
    probe           one question to an engine, to find out how it behaves
    cut             a place at which an answer is broken off
    variant         a strategy as verification tries it: the row, with other settings
    fault           a way to break a stream; an injector stands before an engine and puts faults in
    flight          one stream of a drill, from its question to its verdict
"""
