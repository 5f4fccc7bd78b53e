"""End-to-end tests are made of these: a scripted upstream, the gateway as a process, a bare-socket client."""
