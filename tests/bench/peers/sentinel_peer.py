"""Redis with three sentinels, the third one without data; it takes a master for down after 1 s (30 s as shipped)."""
import os
import signal
import time

from lab import Lab, end, wait_for

NAME = "redis-sentinel"
HOLDER = "third sentinel"
NEEDS = ["redis-server", "redis-sentinel", "redis-cli"]
PACKAGES = ["redis-sentinel"]
DOWN_AFTER_MS = 1000


class Cluster:
    def __init__(self, lab):
        self.lab, self.process = lab, {}
        self.redis("a")
        self.redis("b", replica_of="a")
        for name in "abw":
            with open("%s/sentinel-%s.conf" % (lab.dir, name), "w") as file:
                file.write("port 26379\nprotected-mode no\nbind 0.0.0.0\ndir %s\n"
                           "sentinel monitor orders %s 6379 2\n"
                           "sentinel down-after-milliseconds orders %d\n" % (lab.dir, lab.ip["a"], DOWN_AFTER_MS))
            self.sentinel(name)
        if wait_for(self.is_ready, 60, 0.3) is None:
            raise RuntimeError("the sentinels are not ready: " + lab.logged("w"))

    def redis(self, name, replica_of=None):
        folder = "%s/redis-%s" % (self.lab.dir, name)
        os.makedirs(folder, exist_ok=True)
        argv = ["redis-server", "--port", "6379", "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", folder,
                "--save", "", "--appendonly", "yes"]
        if replica_of:
            argv += ["--replicaof", self.lab.ip[replica_of], "6379"]
        self.process["redis " + name] = self.lab.start(name, argv)

    def sentinel(self, name):
        self.process[name] = self.lab.start(name, ["redis-sentinel",
                                                   "%s/sentinel-%s.conf" % (self.lab.dir, name)])

    def say(self, name, port, *words):
        return self.lab.run(name, ["redis-cli", "-p", str(port)] + list(words))

    def is_ready(self):
        for name in "abw":
            if "OK 3 usable" not in self.say(name, 26379, "SENTINEL", "ckquorum", "orders"):
                return False
            replicas = self.say(name, 26379, "SENTINEL", "replicas", "orders")
            if self.lab.ip["b"] not in replicas or "s_down" in replicas or "master-link-status\nok" not in replicas:
                return False
        return True

    def kill(self, name):
        end(self.process["redis " + name], signal.SIGKILL)
        end(self.process[name], signal.SIGKILL)


def is_master(seen):
    return seen == "master"


def measure(options):
    found = {"failover": []}
    for run in range(options.runs):
        with Lab("r") as lab:
            cluster = Cluster(lab)
            time.sleep(3)
            if run == 0:
                found["idle"] = lab.idle({"w": cluster.process["w"]}, options.idle)
            role = lab.observe("b", "redis", "6379", "ROLE")
            role.until(lambda seen: seen == "slave")
            began = time.monotonic()
            lab.pull("a")
            found["failover"].append(role.until_first(began, is_master))
            if run == 0:
                found["restart"] = restart(cluster)
    with Lab("r") as lab:
        found["stale"] = stale(Cluster(lab))
    return found


def restart(cluster):
    """B is the master, A is back and sees only the third sentinel, which is killed and started again."""
    lab = cluster.lab
    lab.apart("b")
    lab.plug("a", apart=True)
    time.sleep(3)
    end(cluster.process["w"], signal.SIGKILL)
    time.sleep(1)
    cluster.sentinel("w")
    time.sleep(15)
    takes = {name: "OK" in cluster.say(name, 6379, "SET", "who", name) for name in "ab"}
    if takes["a"] and takes["b"]:
        return "**both take writes**"
    if takes["a"]:
        return "**the vote moved to the other one**"
    return "stays with its holder"


def stale(cluster):
    """A dies, B becomes master and takes a write, B dies, A comes back as it was started."""
    lab = cluster.lab
    role = lab.observe("b", "redis", "6379", "ROLE")
    role.until(lambda seen: seen == "slave")
    cluster.kill("a")
    role.until(is_master)
    cluster.say("b", 6379, "SET", "later", "kept")
    cluster.kill("b")
    cluster.redis("a")
    cluster.sentinel("a")
    time.sleep(20)
    takes = "OK" in cluster.say("a", 6379, "SET", "probe", "1")
    kept = "kept" in cluster.say("a", 6379, "GET", "later")
    if not takes:
        return "refused"
    return "takes writes with all data" if kept else "**takes writes without what was acknowledged**"
