"""corosync-qnetd with a cluster of two, TLS on, algorithm ffsplit, timers as shipped, no resource manager."""
import os
import signal
import time

from lab import Lab, end, sh, wait_for

NAME = "corosync-qnetd"
HOLDER = "qnetd"
NEEDS = ["corosync", "corosync-qdevice", "corosync-qnetd", "corosync-quorumtool", "certutil"]
PACKAGES = ["corosync-qnetd"]
NUMBER = {"a": 1, "b": 2}

CONFIGURATION = """totem {
 version: 2
 cluster_name: peers
 transport: knet
}
nodelist {
 node {
  ring0_addr: %(a)s
  name: a
  nodeid: 1
 }
 node {
  ring0_addr: %(b)s
  name: b
  nodeid: 2
 }
}
quorum {
 provider: corosync_votequorum
 device {
  model: net
  votes: 1
  net {
   host: %(w)s
   algorithm: ffsplit
   tls: on
  }
 }
}
logging {
 to_syslog: no
 to_stderr: yes
}
"""

CERTIFICATES = """set -e
mount --bind %s /etc/corosync
Q=/etc/corosync/qnetd/nssdb; N=/etc/corosync/qdevice/net/nssdb
corosync-qnetd-certutil -i -G
corosync-qdevice-net-certutil -i -c $Q/qnetd-cacert.crt
corosync-qdevice-net-certutil -r -n peers
corosync-qnetd-certutil -s -G -c $N/qdevice-net-node.crq -n peers
corosync-qdevice-net-certutil -M -c $Q/cluster-peers.crt
"""


class Cluster:
    """The daemons see folders of their own in the place of /etc/corosync, /run and /var/lib/corosync."""

    def __init__(self, lab):
        self.lab, self.process = lab, {}
        self.etc = lab.dir + "/etc"
        for folder in ("qnetd", "qdevice/net"):
            os.makedirs("%s/%s" % (self.etc, folder))
        os.chmod(lab.dir, 0o755)
        with open(self.etc + "/corosync.conf", "w") as file:
            file.write(CONFIGURATION % lab.ip)
        said = sh(["unshare", "-m", "bash", "-c", CERTIFICATES % self.etc], check=False, timeout=120)
        if not os.path.exists(self.etc + "/qdevice/net/nssdb/qdevice-net-node.p12"):
            raise RuntimeError("no certificates: " + said[-500:])
        self.witness()
        time.sleep(1)
        for name in "ab":
            self.start(name)
        self.sees = {name: lab.observe(name, "quorum") for name in "ab"}
        self.until_healthy()

    def witness(self):
        self.process["w"] = self.lab.start("w", ["corosync-qnetd", "-f"], private=["/run"],
                                           bind=[(self.etc, "/etc/corosync")])

    def start(self, name):
        bind = [(self.etc, "/etc/corosync")]
        self.process[name] = self.lab.start(name, ["corosync", "-f"], bind=bind,
                                            private=["/run", "/var/lib/corosync"])
        up = wait_for(lambda: "Quorum information" in self.status(name), 30, 0.1)
        if up is None:
            raise RuntimeError("corosync does not start: " + self.lab.logged(name))
        self.process["device " + name] = self.lab.start(name, ["corosync-qdevice", "-f"], bind=bind,
                                                        private=["/run"])

    def status(self, name):
        return self.lab.run(name, ["corosync-quorumtool", "-s"])

    def until_healthy(self):
        def well():
            seen = [self.status(name) for name in "ab"]
            return all("Quorate:          Yes" in one and "Total votes:      3" in one for one in seen)
        if wait_for(well, 120, 0.2) is None:
            raise RuntimeError("the cluster does not form: " + self.status("a") + self.lab.logged("w"))

    def kill(self, name):
        for process in ("device " + name, name):
            end(self.process[process], signal.SIGKILL)

    def goes_on_alone(self, name):
        return lambda seen: seen == [1, [NUMBER[name]]]


def quorate(seen):
    return bool(seen) and seen[0] == 1


def measure(options):
    found = {"failover": []}
    with Lab("q") as lab:
        cluster = Cluster(lab)
        time.sleep(5)
        found["idle"] = lab.idle({"w": cluster.process["w"]}, options.idle)
        for run in range(options.runs):
            # Where in the device's heartbeat of 8 s the fault comes must not be the same each time.
            time.sleep(2 + 8 * run / options.runs)
            began = time.monotonic()
            lab.pull("a")
            found["failover"].append(cluster.sees["b"].until_first(began, cluster.goes_on_alone("b")))
            lab.plug("a")
            cluster.until_healthy()
        found["restart"] = restart(cluster)
    with Lab("q") as lab:
        found["stale"] = stale(Cluster(lab))
    return found


def restart(cluster):
    """B holds the vote alone, A is back and sees only qnetd, which is killed and started again."""
    lab = cluster.lab
    cluster.kill("a")
    cluster.sees["b"].until(cluster.goes_on_alone("b"))
    time.sleep(1)
    lab.apart("ab")
    cluster.start("a")
    time.sleep(25)
    began = time.monotonic()
    end(cluster.process["w"], signal.SIGKILL)
    time.sleep(1)
    cluster.witness()
    time.sleep(40)
    moved = cluster.sees["a"].ever(began, quorate)
    interrupted = cluster.sees["b"].ever(began, lambda seen: not quorate(seen))
    lab.apart("ab", False)
    if moved:
        return "**the vote moved to the other one**"
    return "stays with its holder" + (", who was interrupted" if interrupted else ", no interruption")


def stale(cluster):
    """A dies, B goes on alone, B dies, A comes back."""
    cluster.kill("a")
    cluster.sees["b"].until(cluster.goes_on_alone("b"))
    time.sleep(2)
    cluster.kill("b")
    # Until qnetd has noticed that B is gone.
    time.sleep(15)
    began = time.monotonic()
    cluster.start("a")
    got = cluster.sees["a"].until_first(began, quorate, 60)
    return "refused" if got is None else "**gets the vote**"
