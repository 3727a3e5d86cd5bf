"""etcd: three full members, as Patroni's users run it; the third host holds all data as well."""
import json
import signal
import time

from lab import Lab, end, wait_for

NAME = "etcd, three nodes"
HOLDER = "third member"
NEEDS = ["etcd", "etcdctl"]
PACKAGES = ["etcd-server"]
MEMBERS = "abw"


class Cluster:
    def __init__(self, lab):
        self.lab, self.process = lab, {}
        for name in MEMBERS:
            self.start(name, "new")
        self.leader()

    def start(self, name, state="existing"):
        ip = self.lab.ip
        self.process[name] = self.lab.start(name, [
            "etcd", "--name", name, "--data-dir", "%s/data-%s" % (self.lab.dir, name),
            "--listen-client-urls", "http://0.0.0.0:2379", "--advertise-client-urls", "http://%s:2379" % ip[name],
            "--listen-peer-urls", "http://%s:2380" % ip[name],
            "--initial-advertise-peer-urls", "http://%s:2380" % ip[name],
            "--initial-cluster", ",".join("%s=http://%s:2380" % (member, ip[member]) for member in MEMBERS),
            "--initial-cluster-state", state, "--logger", "zap"])

    def control(self, name, *words):
        endpoint = "http://%s:2379" % self.lab.ip[name]
        return self.lab.run(name, ["env", "ETCDCTL_API=3", "etcdctl", "--endpoints", endpoint] + list(words))

    def seen_by(self, name):
        for line in self.control(name, "endpoint", "status", "-w", "json").splitlines():
            if line.startswith("["):
                status = json.loads(line)[0]["Status"]
                return status["header"]["member_id"], status.get("leader", 0)
        return None, 0

    def leader(self, members=MEMBERS):
        """Once these agree on one of all."""
        ids = {}

        def agreed():
            seen = {name: self.seen_by(name) for name in members}
            ids.update({one[0]: name for name, one in seen.items()})
            leaders = {one[1] for one in seen.values()}
            return len(leaders) == 1 and leaders.pop() in ids
        if wait_for(agreed, 60, 0.2) is None:
            raise RuntimeError("etcd has no leader: " + self.lab.logged("a"))
        return ids[self.seen_by(members[0])[1]]

    def until_leads(self, wanted):
        """The leader is one of the two replicas: it is moved there."""
        now = self.leader()
        if now != wanted:
            member = "%x" % self.seen_by(wanted)[0]
            self.control(now, "move-leader", member)
            if wait_for(lambda: self.leader() == wanted, 30, 0.2) is None:
                raise RuntimeError("the leader cannot be moved")


def written_after(observer, moment):
    """Until a write that began later than that was accepted."""
    def first():
        return next((one["at"] - moment for one in observer.all() if one["is"] and one["began"] > moment), None)
    wait_for(lambda: first() is not None, 60)
    return first()


def measure(options):
    found = {}
    with Lab("e") as lab:
        cluster = Cluster(lab)
        cluster.until_leads("a")
        time.sleep(5)
        found["idle"] = lab.idle({"w": cluster.process["w"]}, options.idle)
        found["failover"] = [failover(cluster) for _ in range(options.runs)]
        found["restart"] = restart(cluster)
        found["stale"] = stale(cluster)
    return found


def failover(cluster):
    cluster.until_leads("a")
    time.sleep(1)
    writes = cluster.lab.observe("b", "etcd", cluster.lab.ip["b"])
    writes.until(lambda accepted: accepted)
    began = time.monotonic()
    cluster.lab.pull("a")
    # Writes that were accepted in the same moment went through the old leader.
    took = written_after(writes, began + 0.1)
    end(writes.process)
    cluster.lab.plug("a")
    return took + 0.1 if took is not None else None


def restart(cluster):
    """A and B are apart, B leads with the third member, which is killed and started again."""
    lab = cluster.lab
    cluster.until_leads("b")
    lab.apart("ab")
    time.sleep(3)
    before = cluster.leader("bw")
    began = time.monotonic()
    end(cluster.process["w"], signal.SIGKILL)
    time.sleep(1)
    cluster.start("w")
    writes = lab.observe("b", "etcd", lab.ip["b"])
    took = written_after(writes, began)
    end(writes.process)
    time.sleep(5)
    ids = {cluster.seen_by(name)[0]: name for name in MEMBERS}
    after = ids.get(cluster.seen_by("w")[1])
    lab.apart("ab", False)
    if took is None:
        return "no writes for 60 s"
    where = "stays with its holder" if after == before else "the lead moved, with all data"
    return "%s; writes waited %.1f s" % (where, took)


def stale(cluster):
    """A dies, B goes on with the third member, B dies, A comes back."""
    cluster.until_leads("a")
    end(cluster.process["a"], signal.SIGKILL)
    cluster.leader("bw")
    cluster.control("b", "put", "later", "kept")
    end(cluster.process["b"], signal.SIGKILL)
    cluster.start("a")
    cluster.leader("aw")
    kept = "kept" in cluster.control("a", "get", "later")
    return "taken in, with all data from the third" if kept else "**leads without what was written**"
