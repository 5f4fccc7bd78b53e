"""What `manage.py drill` does: faults at random places of many streams, and every answer compared exactly.

    kinds      the faults that there are
    questions  what the engine is asked
    plans      seed and number of a stream -> what happens to it, and where
    wire       HTTP/1.1, as little as is needed, with full control over how it breaks
    reading    bytes of an event stream -> what a client makes of them
    flights    what is noted about one stream: by the injector, by the client
    injector   stands between gateway and engine, and breaks what passes
    caller     the clients, well-behaved and not
    judging    plan and notes -> what was due, and whether it came
    ledger     the gateway's audit rows, held against what was due
    sampling   memory, descriptors, tasks and latency over time
    stage      the processes
    campaign   all of it together
    report     progress, table, JSON
    plot       the picture

None of it shares code with the gateway's own reading of streams: a drill that reads as the gateway reads would
overlook what both overlook.
"""
