"""What `manage.py drill` does: faults at random places of many streams, and every answer compared exactly.

    kinds      P  the faults that there are
    questions  P  what the engine is asked
    plans      P  seed and number of a stream -> what happens to it, and where
    wire          HTTP/1.1 as little as needed, with full control over how it breaks
    reading    P  bytes of an event stream -> what a client makes of them
    flights    P  what is noted about one stream: by the injector, by the client
    injector      stands between gateway and engine, and breaks what passes
    caller        the clients, well-behaved and not
    judging    P  plan + notes -> what was due, and whether it came
    ledger        the gateway's audit rows, held against what was due
    sampling      memory, descriptors, tasks and latency over time
    stage         the processes
    campaign      all of it together
    report        progress, tables, JSON;  plot: the picture

P imports no asyncio, no Django. None of it shares code with the gateway's own reading of streams: a drill that reads
as the gateway reads would overlook what both overlook.
"""
