"""tiebreak: two replicas with an agent and nothing to run, and the witness, at the default lease of 2 s."""
import os
import signal
import stat
import time

from lab import Lab, end, sh, wait_for

NAME = "tiebreak"
HOLDER = "witness"
NEEDS = []
PACKAGES = []
# What holds the witness's vote is one binary.
BINARY = os.environ.get("TIEBREAK", "")


class Trio:
    def __init__(self, lab):
        self.lab, self.process = lab, {}
        keys = {}
        for name in "abw":
            keys[name] = sh([BINARY, "keys", "new", self.path(name + ".pem")]) and \
                sh([BINARY, "keys", "show", self.path(name + ".pem")]).strip()
        hook = self.path("hook")
        with open(hook, "w") as file:
            file.write("#!/bin/sh\nexit 0\n")
        os.chmod(hook, stat.S_IRWXU)
        for name in "abw":
            with open(self.config(name), "w") as file:
                file.write(self.text(name, keys, hook))
        self.command("init", "a")
        self.command("init", "b", "--blank")
        self.command("init", "w", "--blank")

    def path(self, name):
        return os.path.join(self.lab.dir, name)

    def config(self, name):
        return self.path(name + ".toml")

    def command(self, what, name, *more):
        return sh([BINARY, what, "--config", self.config(name)] + list(more))

    def text(self, name, keys, hook):
        lines = ['node = "%s"' % name, 'key = "%s"' % self.path(name + ".pem"),
                 'state = "%s"' % self.path("state-" + name), 'listen = ["0.0.0.0:7400"]']
        if name == "w":
            lines += ["[[cluster]]", 'name = "orders"']
            for replica in "ab":
                lines += ["[[cluster.replica]]", 'node = "%s"' % replica, 'keys = ["%s"]' % keys[replica]]
        else:
            lines.insert(0, 'cluster = "orders"')
            for part, other in (("peer", "ab".replace(name, "")), ("witness", "w")):
                lines += ["[%s]" % part, 'node = "%s"' % other,
                          'addresses = ["%s:7400"]' % self.lab.ip[other], 'keys = ["%s"]' % keys[other]]
            lines += ["[agent]", 'http = "127.0.0.1:8008"', 'runtime = "%s"' % self.path("run-" + name),
                      "[agent.hooks]", 'promote = "%s"' % hook, 'demote = "%s"' % hook]
        return "\n".join(lines) + "\n"

    def start(self, name):
        part = "witness" if name == "w" else "agent"
        self.process[name] = self.lab.start(name, [BINARY, part, "--config", self.config(name)])

    def kill(self, name):
        end(self.process[name], signal.SIGKILL)


def leads(seen):
    return seen == 200


class Session:
    """A cluster in which A leads, paired, and what either replica's `/primary` says."""

    def __init__(self, lab):
        self.lab, self.trio = lab, Trio(lab)
        for name in "wab":
            self.trio.start(name)
        self.sees = {name: lab.observe(name, "http", "http://127.0.0.1:8008/primary") for name in "ab"}
        self.until_paired()

    def until_paired(self):
        """Until `tiebreak status` finds nothing amiss: a leader, a standby that holds everything, and the witness."""
        def well():
            said = self.lab.run("a", ["sh", "-c", '"$0" status --config "$1" >/dev/null 2>&1; echo $?', BINARY,
                                      self.trio.config("a")])
            return said.strip() == "0"
        if wait_for(well, 150, 0.2) is None:
            raise RuntimeError("not paired: " + self.lab.run("a", [BINARY, "status", "--config", self.trio.config("a")]))

    def until_solo(self):
        self.sees["b"].until(leads)


def measure(options):
    found = {}
    with Lab("t") as lab:
        session = Session(lab)
        time.sleep(5)
        found["idle"] = lab.idle({"w": session.trio.process["w"]}, options.idle)
        found["failover"] = failovers(session, options.runs)
    with Lab("t") as lab:
        found["restart"] = restart(Session(lab))
    with Lab("t") as lab:
        found["stale"] = stale(Session(lab))
    return found


def failovers(session, runs):
    """The leader's cable is pulled: until the other one leads."""
    spans, leader = [], "a"
    for _ in range(runs):
        other = "ab".replace(leader, "")
        began = time.monotonic()
        session.lab.pull(leader)
        spans.append(session.sees[other].until_first(began, leads))
        session.lab.plug(leader)
        session.until_paired()
        leader = other
    return spans


def restart(session):
    """B leads alone, A is back and sees only the witness, and the witness is killed and started again."""
    lab, trio, sees = session.lab, session.trio, session.sees
    trio.kill("a")
    session.until_solo()
    lab.apart("ab")
    trio.start("a")
    time.sleep(10)
    began = time.monotonic()
    trio.kill("w")
    time.sleep(1)
    trio.start("w")
    time.sleep(30)
    return verdict(sees["a"].ever(began, leads), sees["b"].ever(began, lambda seen: not leads(seen)))


def verdict(moved, interrupted):
    if moved:
        return "**the vote moved to the other one**"
    return "stays with its holder" + (", who was interrupted" if interrupted else ", no interruption")


def stale(session):
    """A dies, B goes on alone, B dies, A comes back."""
    trio, sees = session.trio, session.sees
    trio.kill("a")
    session.until_solo()
    # What B acknowledges alone it does after the witness has confirmed that.
    time.sleep(5)
    trio.kill("b")
    began = time.monotonic()
    trio.start("a")
    time.sleep(20)
    return "**leads**" if sees["a"].ever(began, leads) else "refused"
