"""Tells each change of one thing as a JSON line: {"at": seconds of the machine's clock, "is": what}. Runs on the host
that it looks at, so that a pulled cable does not blind it.

    observe.py http URL            the status code, 0 when nobody answers
    observe.py redis PORT WORD...  the first word of the answer ("master", "+OK")
    observe.py etcd IP             true at each write that was accepted, with its time; false at one that was not
    observe.py quorum              corosync's: [quorate, [members]]
"""
import ctypes
import http.client
import json
import os
import socket
import sys
import time
import urllib.error
import urllib.request

EVERY_SECONDS = 0.01


def tell(what):
    os.write(1, (json.dumps({"at": time.monotonic(), "is": what}) + "\n").encode())


def changes(look):
    last = object()
    while True:
        now = look()
        if now != last:
            tell(now)
            last = now
        time.sleep(EVERY_SECONDS)


def status(url):
    try:
        with urllib.request.urlopen(url, timeout=0.5) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def redis(port, words):
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5) as link:
            link.sendall(b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(w), w.encode()) for w in words))
            answer = link.recv(65536).decode(errors="replace").split("\r\n")
    except OSError:
        return "down"
    if answer[0].startswith("*"):
        return answer[2]
    return answer[0].split(" ")[0] if answer[0].startswith("-") else answer[0]


class Etcd:
    def __init__(self, ip):
        self.ip, self.link = ip, None

    def write(self):
        try:
            if self.link is None:
                self.link = http.client.HTTPConnection(self.ip, 2379, timeout=0.5)
            self.link.request("POST", "/v3/kv/put", json.dumps({"key": "aw==", "value": "dg=="}))
            answer = self.link.getresponse()
            answer.read()
            return answer.status == 200
        except (OSError, http.client.HTTPException):
            self.link = None
            return False


def etcd(ip):
    client = Etcd(ip)
    while True:
        began = time.monotonic()
        done = client.write()
        os.write(1, (json.dumps({"at": time.monotonic(), "is": done, "began": began}) + "\n").encode())
        time.sleep(EVERY_SECONDS)


def quorum():
    """libquorum as an application sees it: the flag, and the membership that it was told last."""
    lib = ctypes.CDLL("libquorum.so.5")
    members = []
    told = ctypes.CFUNCTYPE(None, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64, ctypes.c_uint32,
                            ctypes.POINTER(ctypes.c_uint32))

    def view(_handle, _quorate, _ring, count, list_of):
        members[:] = [list_of[place] for place in range(count)]

    calls = (told * 1)(told(view))
    handle = None

    def look():
        nonlocal handle
        if handle is None:
            fresh, kind = ctypes.c_uint64(), ctypes.c_uint32()
            if lib.quorum_initialize(ctypes.byref(fresh), ctypes.byref(calls), ctypes.byref(kind)) != 1:
                return [0, []]
            handle = fresh
            lib.quorum_trackstart(handle, 2)
        flag = ctypes.c_int()
        # 4: dispatch one without waiting; 6: nothing there yet.
        if lib.quorum_getquorate(handle, ctypes.byref(flag)) != 1 or lib.quorum_dispatch(handle, 4) not in (1, 6):
            lib.quorum_finalize(handle)
            handle = None
            return [0, []]
        return [flag.value, list(members)]

    changes(look)


if __name__ == "__main__":
    kind, words = sys.argv[1], sys.argv[2:]
    if kind == "http":
        changes(lambda: status(words[0]))
    elif kind == "redis":
        changes(lambda: redis(int(words[0]), words[1:]))
    elif kind == "etcd":
        etcd(words[0])
    elif kind == "quorum":
        quorum()
    else:
        sys.exit(__doc__)
