"""Hosts as network namespaces round one bridge, processes in them, and what they use.

A cable is pulled on the side of the switch: packets vanish in silence and no node is told. Nothing is left behind:
namespaces, processes and files end with the lab.
"""
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = os.path.dirname(os.path.abspath(__file__))
# A frame as the interface counts it: the Ethernet head in front of the IP packet.
ETHERNET_BYTES = 14


def sh(argv, check=True, timeout=60, env=None):
    return subprocess.run(argv, shell=isinstance(argv, str), check=check, text=True, timeout=timeout, env=env,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT).stdout


class Lab:
    """`with Lab("x") as lab:` three hosts, a, b and w."""

    def __init__(self, tag, names=("a", "b", "w")):
        self.tag = "tb%s%d" % (tag, os.getpid() % 100000)
        self.names = list(names)
        self.ip = {name: "10.77.0.%d" % (place + 1) for place, name in enumerate(names)}
        self.processes = []
        self.dir = tempfile.mkdtemp(prefix="tiebreak-peers-%s-" % tag)

    def ns(self, name):
        return "%s-%s" % (self.tag, name)

    def __enter__(self):
        # So that a time-out that ends the script takes the namespaces down as well.
        signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
        switch = self.ns("s")
        sh(["ip", "netns", "add", switch])
        self.without_ipv6(switch)
        sh(["ip", "-n", switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0"])
        sh(["ip", "-n", switch, "link", "set", "br0", "up"])
        for name in self.names:
            ns = self.ns(name)
            sh(["ip", "netns", "add", ns])
            self.without_ipv6(ns)
            sh(["ip", "-n", ns, "link", "set", "lo", "up"])
            sh(["ip", "-n", ns, "link", "add", "eth0", "type", "veth", "peer", "name", "p" + name,
                "netns", switch])
            sh(["ip", "-n", ns, "link", "set", "eth0", "address", self.mac(name)])
            sh(["ip", "-n", ns, "addr", "add", self.ip[name] + "/24", "dev", "eth0"])
            sh(["ip", "-n", ns, "link", "set", "eth0", "up"])
            sh(["ip", "-n", switch, "link", "set", "p" + name, "master", "br0", "up"])
        # Nobody has to ask for addresses: what the interfaces count is IP packets and nothing else.
        for name in self.names:
            for other in self.names:
                if other != name:
                    sh(["ip", "-n", self.ns(name), "neigh", "replace", self.ip[other], "lladdr", self.mac(other),
                        "dev", "eth0", "nud", "permanent"])
        return self

    def mac(self, name):
        return "02:00:00:00:77:%02x" % (self.names.index(name) + 1)

    @staticmethod
    def without_ipv6(ns):
        sh(["ip", "netns", "exec", ns, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1",
            "net.ipv6.conf.default.disable_ipv6=1"], check=False)

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
        for name in self.names + ["s"]:
            sh(["ip", "netns", "del", self.ns(name)], check=False)
        shutil.rmtree(self.dir, ignore_errors=True)

    # Faults.
    def pull(self, name):
        sh(["ip", "-n", self.ns("s"), "link", "set", "p" + name, "nomaster"])

    def plug(self, name, apart=False):
        """apart: it never reaches those that are apart as well, not even in between."""
        switch, port = self.ns("s"), "p" + name
        if apart:
            sh(["ip", "-n", switch, "link", "set", port, "down"])
        sh(["ip", "-n", switch, "link", "set", port, "master", "br0"])
        if apart:
            self.apart(name)
            sh(["ip", "-n", switch, "link", "set", port, "up"])

    def apart(self, names, apart=True):
        """These cannot reach one another, and reach everybody else."""
        for name in names:
            sh(["ip", "-n", self.ns("s"), "link", "set", "p" + name, "type", "bridge_slave", "isolated",
                "on" if apart else "off"])

    # Processes.
    def start(self, name, argv, private=(), bind=()):
        """argv on that host; the process id is the program's own. private: folders that are empty for it; bind:
        (from, to) pairs."""
        before = []
        if private or bind:
            mounts = "".join("mount -t tmpfs tmpfs %s\n" % folder for folder in private)
            mounts += "".join("mount --bind %s %s\n" % pair for pair in bind)
            before = ["unshare", "-m", "sh", "-ec", mounts + 'exec "$@"', "sh"]
        with open(self.log(name), "ab") as log:
            process = subprocess.Popen(["ip", "netns", "exec", self.ns(name)] + before + list(argv), stdout=log,
                                       stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
        self.processes.append(process)
        return process

    def log(self, name):
        return "%s/log-%s" % (self.dir, name)

    def logged(self, name):
        with open(self.log(name), errors="replace") as log:
            return log.read()[-3000:]

    def run(self, name, argv, timeout=60):
        return sh(["ip", "netns", "exec", self.ns(name)] + list(argv), check=False, timeout=timeout)

    def observe(self, name, *what):
        return Observer(self, name, what)

    # What is used.
    def wire(self, name):
        """Bytes of IP packets and packets, sent and received, since the host began."""
        for line in self.run(name, ["cat", "/proc/net/dev"]).splitlines():
            if line.strip().startswith("eth0:"):
                field = [int(text) for text in line.split(":")[1].split()]
                packets = field[1] + field[9]
                return field[0] + field[8] - packets * ETHERNET_BYTES, packets
        raise RuntimeError("no eth0 on " + name)

    def idle(self, processes, seconds):
        """Memory, processor and wire of the processes {host: process} over so many seconds."""
        cpu = {name: cpu_seconds(process.pid) for name, process in processes.items()}
        wire = {name: self.wire(name) for name in self.names}
        began = time.monotonic()
        time.sleep(seconds)
        span = time.monotonic() - began
        used = {name: tuple((now - then) / span for now, then in zip(self.wire(name), wire[name]))
                for name in self.names}
        found = {"seconds": span, "wire": used["w"], "between": (0.0, 0.0)}
        if "a" in used and "b" in used:
            # What goes between the replicas is counted at both, what goes to the witness at one of them.
            found["between"] = tuple(max(0.0, (a + b - w) / 2) for a, b, w in zip(used["a"], used["b"], used["w"]))
        for name, process in processes.items():
            found[name] = dict(memory(process.pid), cpu=(cpu_seconds(process.pid) - cpu[name]) / span)
        return found


class Observer:
    """A process on a host that tells each change of what it looks at, stamped with the clock of the machine."""

    def __init__(self, lab, name, what):
        self.seen, self.lock = [], threading.Lock()
        self.process = subprocess.Popen(["ip", "netns", "exec", lab.ns(name), sys.executable,
                                         HERE + "/observe.py"] + list(what), stdout=subprocess.PIPE, text=True)
        lab.processes.append(self.process)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self):
        for line in self.process.stdout:
            with self.lock:
                self.seen.append(json.loads(line))

    def all(self):
        with self.lock:
            return list(self.seen)

    def now(self):
        seen = self.all()
        return seen[-1]["is"] if seen else None

    def first(self, since, wanted):
        """Seconds after `since` at which it was so for the first time."""
        return next((one["at"] - since for one in self.all() if one["at"] >= since and wanted(one["is"])), None)

    def ever(self, since, wanted):
        return self.first(since, wanted) is not None

    def until(self, wanted, timeout=60):
        if wait_for(lambda: wanted(self.now()), timeout) is None:
            raise RuntimeError("not before the deadline; last seen: %r" % (self.now(),))

    def until_first(self, since, wanted, timeout=60):
        wait_for(lambda: self.first(since, wanted) is not None, timeout)
        return self.first(since, wanted)


def wait_for(condition, timeout, step=0.02):
    """Seconds until it holds, or None."""
    began = time.monotonic()
    while time.monotonic() - began < timeout:
        if condition():
            return time.monotonic() - began
        time.sleep(step)
    return None


def end(process, how=signal.SIGKILL):
    if process.poll() is None:
        process.send_signal(how)
    process.wait(20)


def memory(pid):
    wanted = {"Rss": "resident", "Anonymous": "anonymous"}
    found = {}
    with open("/proc/%d/smaps_rollup" % pid) as rollup:
        for line in rollup:
            word = line.split(":")[0]
            if word in wanted:
                found[wanted[word]] = int(line.split()[1]) * 1024
    return found


def cpu_seconds(pid):
    """The scheduler's own account in nanoseconds, so that less than a tick reads as more than nothing."""
    total = 0
    for thread in os.listdir("/proc/%d/task" % pid):
        with open("/proc/%d/task/%s/schedstat" % (pid, thread)) as stat:
            total += int(stat.read().split()[0])
    return total / 1e9


def median(values):
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def missing(programs):
    return [program for program in programs if shutil.which(program) is None]
