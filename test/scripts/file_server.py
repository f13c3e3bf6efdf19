#!/usr/bin/env python3
"""A file server with selectable faults, for test_fetch.sh.

    file_server.py FOLDER        serves FOLDER at http://127.0.0.1:PORT; prints PORT

The first part of a path names the faults, joined by commas, and the rest is a file of FOLDER:

    /ranges/FILE        whole, and with ranges
    /FAULT,.../FILE     any of: ranges; cut:N (the connection ends after N bytes of an answer);
                        stall:N (after N bytes nothing comes any more);
                        nohead (HEAD is refused); etag (hashes as the Hugging Face hub gives them,
                        on a redirect); gittag (the same for a small file); othertag (an ETag that
                        looks like a hash of the content, but is none); wrong (other bytes of the
                        same number); busy:N (503 for the first N requests of this path);
                        linkedsize:N (announces N bytes as the hub does); token (401 without the
                        header Authorization: Bearer secret); forged (other bytes, with their own
                        hash as the hub gives it); endless (64 MiB without a length); empty

Every request that is not redirected is a line of FOLDER/log: method, path, range asked for, and
whether it had a token.
"""
import hashlib
import http.server
import os
import sys
import time

folder = sys.argv[1]
busy = {}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.0"

    def faults(self):
        """The faults as a dictionary, and the path below them."""
        first, _, rest = self.path.lstrip("/").partition("/")
        pairs = (fault.partition(":") for fault in first.split(","))
        return {name: int(value or 0) for name, _, value in pairs}, rest

    def announce(self, faults, content):
        """ETags: of the content, in the two ways of the hub, or of nothing."""
        sha256 = hashlib.sha256(content).hexdigest()
        if "etag" in faults:
            self.send_header("X-Linked-Size", str(len(content)))
            self.send_header("X-Linked-ETag", f'"{sha256}"')
        if "linkedsize" in faults:
            self.send_header("X-Linked-Size", str(faults["linkedsize"]))
        if "gittag" in faults:
            blob = b"blob %d\0" % len(content) + content
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'W/"{hashlib.sha1(blob).hexdigest()}"')
        if "othertag" in faults:
            self.send_header("ETag", f'"{"5" * 64}"')

    def answer(self, body):
        faults, rest = self.faults()
        path = os.path.join(folder, rest)
        if "etag" not in faults or not os.path.isfile(path):
            with open(os.path.join(folder, "log"), "a", encoding="utf-8") as log:
                log.write(f"{self.command} {self.path} {self.headers.get('Range', '-')}"
                          f"{' with a token' if self.headers.get('Authorization') else ''}\n")
        if busy.setdefault(self.path, faults.get("busy", 0)) > 0:
            busy[self.path] -= 1
            return self.send_error(503)
        if "token" in faults and self.headers.get("Authorization") != "Bearer secret":
            return self.send_error(401)
        if not os.path.isfile(path):
            return self.send_error(404)
        if "nohead" in faults and "etag" not in faults and not body:
            return self.send_error(403)
        with open(path, "rb") as file:
            content = b"" if "empty" in faults else file.read()
        if "etag" in faults:
            # As the hub does: says the hash, and sends on to where the bytes are.
            self.send_response(302)
            self.announce(faults, content)
            others = ",".join(f for f in self.path.split("/")[1].split(",") if f != "etag")
            elsewhere = f"http://localhost:{self.server.server_port}" if "forged" in faults else ""
            self.send_header("Location", f"{elsewhere}/{others},othertag/{rest}")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return None
        return self.give(faults, content, body)

    def give(self, faults, content, body):
        start, size, most = 0, len(content), faults.get("cut", len(content))
        asked = self.headers.get("Range", "")
        if "wrong" in faults or "forged" in faults:
            content = bytes(byte ^ 1 for byte in content)
        if "endless" in faults and body:
            self.send_response(200)
            self.end_headers()
            for _ in range(64):
                self.wfile.write(bytes(1 << 20))
            return None
        if "ranges" in faults and asked.startswith("bytes="):
            start = int(asked[6:].split("-")[0])
            if start >= size:
                return self.send_error(416)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        else:
            self.send_response(200)
        self.announce({**faults, "etag": 0} if "forged" in faults else faults, content)
        self.send_header("Content-Length", str(size - start))
        self.end_headers()
        if body:
            if "stall" in faults and start == 0:
                most = faults["stall"]
            self.wfile.write(content[start : start + most])
            if most == faults.get("stall") and most < size:
                time.sleep(60)
        return None

    def do_GET(self):
        self.answer(body=True)

    def do_HEAD(self):
        self.answer(body=False)

    def log_message(self, *_):
        pass


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_):  # a client that left is what some tests are about
        pass


server = Server(("127.0.0.1", 0), Handler)
print(server.server_address[1], flush=True)
server.serve_forever()
