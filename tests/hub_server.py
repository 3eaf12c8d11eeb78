"""
A Hub for the tests: as much of the Hub's HTTP interface as pushing and loading models uses, kept in memory.

The real `huggingface_hub` talks to it with `HF_ENDPOINT=server.endpoint` and `HF_HUB_DISABLE_XET=1`. As on the Hub,
large files lie on another host (`localhost` instead of `127.0.0.1`), which must not be shown the token; a repository
that somebody may not see does not exist for them; and a commit is visible as a whole or not at all.
"""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

USER = "user"
TOKENS = {"hf_write": "write", "hf_read": "read"}  # both of the same user
LARGE_FILES = ("*.safetensors", "*.bin")
REPOSITORY = r"(?P<repo>[\w.-]+/[\w.-]+?)"
REVISION = r"(?P<revision>[^/]+)"


class HubError(Exception):
    """An answer that is an error, with the Hub's headers for its message and code."""

    def __init__(self, status: int, message: str, code: str | None = None, **headers: str):
        self.status, self.message = status, message
        codes = {} if code is None else {"X-Error-Code": code}
        self.headers = {"X-Error-Message": message, **codes, **headers}


@dataclass
class Repository:
    private: bool
    refs: dict[str, str] = field(default_factory=dict)  # "refs/heads/main" -> commit
    commits: dict[str, dict[str, str]] = field(default_factory=dict)  # commit -> path -> object
    messages: dict[str, str] = field(default_factory=dict)

    def commit(self, branch: str, files: dict[str, str], message: str) -> str:
        about = [self.refs.get(branch), sorted(files.items()), message]
        commit = hashlib.sha1(json.dumps(about).encode()).hexdigest()
        self.commits[commit], self.messages[commit] = files, message
        self.refs[branch] = commit
        return commit

    def resolve(self, revision: str) -> str:
        for name in (f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in self.refs:
                return self.refs[name]
        if revision in self.commits:
            return revision
        raise HubError(404, f"Invalid rev id: {revision}", "RevisionNotFound")


class HubServer(ThreadingHTTPServer):
    """Serves from a thread while it is used in a `with` statement."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_port}"
        self.storage = f"http://localhost:{self.server_port}/objects"
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}  # large files by their SHA-256, the others by git's object id
        self.interrupted = {"method": "", "path": "", "times": 0}
        self.unknown: list[str] = []  # requests that this server does not know

    def __enter__(self) -> HubServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *error) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request, client_address) -> None:
        """Connections end when clients do."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: HubServer

    def log_message(self, *about) -> None:
        pass

    def answer(self) -> None:
        address = urlsplit(self.path)
        interrupted = self.server.interrupted
        if interrupted["times"] and self.command == interrupted["method"] and interrupted["path"] in address.path:
            interrupted["times"] -= 1
            self.rfile.read1(max(1, int(self.headers["Content-Length"]) // 2))
            self.close_connection = True
            return
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.query = parse_qs(address.query)
        try:
            for method, pattern, function in ROUTES:
                # An encoded slash belongs to a name: what is found is decoded, not what is searched.
                found = re.fullmatch(pattern, address.path)
                if found and self.command in method.split():
                    function(self, **{name: unquote(value) for name, value in found.groupdict("").items()})
                    return
            self.server.unknown.append(f"{self.command} {self.path}")
            raise HubError(404, f"This test server does not know {self.command} {self.path}.")
        except HubError as error:
            self.send_json({"error": error.message}, error.status, error.headers)

    do_GET = do_HEAD = do_POST = do_PUT = answer

    def send(self, status: int, content: bytes = b"", headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_json(self, value, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self.send(status, json.dumps(value).encode(), {"Content-Type": "application/json", **(headers or {})})

    def json(self) -> dict:
        return json.loads(self.body)

    def role(self) -> str | None:
        header = self.headers.get("Authorization")
        if header is None:
            return None
        if header.removeprefix("Bearer ") not in TOKENS:
            raise HubError(401, "Invalid credentials in Authorization header")
        return TOKENS[header.removeprefix("Bearer ")]

    def repository(self, name: str, write: bool = False) -> Repository:
        role = self.role()
        repository = self.server.repositories.get(name)
        if repository is None or (repository.private and role is None):
            raise HubError(404 if role else 401, "Repository not found", "RepoNotFound")
        if write:
            self.require_writer()
        return repository

    def require_writer(self) -> None:
        role = self.role()
        if role is None:
            raise HubError(401, "Invalid username or password.")
        if role != "write":
            raise HubError(403, "You need a token with write access")


ROUTES = []


def route(method: str, pattern: str):
    return lambda function: ROUTES.append((method, pattern, function)) or function


def git_object_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def is_large(path: str) -> bool:
    return any(fnmatch.fnmatch(path, pattern) for pattern in LARGE_FILES)


@route("POST", "/interrupt")
def interrupt(request: Handler) -> None:
    """For tests: the next `times` requests with this method and `path` in their address are received by half."""
    request.server.interrupted = request.json()
    request.send_json({})


@route("GET", "/api/whoami-v2")
def whoami(request: Handler) -> None:
    role = request.role()
    if role is None:
        raise HubError(401, "Invalid username or password.")
    request.send_json({"type": "user", "name": USER, "auth": {"accessToken": {"role": role}}})


@route("POST", "/api/validate-yaml")
def validate_yaml(request: Handler) -> None:
    request.send_json({"errors": [], "warnings": []})


@route("POST", "/api/repos/create")
def create_repository(request: Handler) -> None:
    request.require_writer()
    wanted = request.json()
    owner = wanted.get("organization") or USER
    name = f"{owner}/{wanted['name']}"
    if owner != USER:
        raise HubError(403, f"You don't have the rights to create a model under the namespace {owner!r}")
    created = {"url": f"{request.server.endpoint}/{name}", "name": name}
    if name in request.server.repositories:
        request.send_json({"error": "You already created this model repo", **created}, 409)
        return
    repository = Repository(private=wanted.get("private", False) or wanted.get("visibility") == "private")
    attributes = "".join(f"{pattern} filter=lfs diff=lfs merge=lfs -text\n" for pattern in LARGE_FILES).encode()
    request.server.objects[git_object_id(attributes)] = attributes
    repository.commit("refs/heads/main", {".gitattributes": git_object_id(attributes)}, "initial commit")
    request.server.repositories[name] = repository
    request.send_json(created)


@route("POST", f"/api/models/{REPOSITORY}/preupload/{REVISION}")
def preupload(request: Handler, repo: str, revision: str) -> None:
    repository = request.repository(repo, write=True)
    present = repository.commits[repository.resolve(revision)]
    files = [
        {
            "path": file["path"],
            "uploadMode": "lfs" if is_large(file["path"]) else "regular",
            "shouldIgnore": False,
            "oid": present.get(file["path"]),
        }
        for file in request.json()["files"]
    ]
    request.send_json({"files": files})


@route("POST", rf"/{REPOSITORY}\.git/info/lfs/objects/batch")
def large_files(request: Handler, repo: str) -> None:
    request.repository(repo, write=True)
    answers = []
    for wanted in request.json()["objects"]:
        answer = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in request.server.objects:
            verify = f"{request.server.endpoint}/{repo}.git/info/lfs/verify"
            upload = f"{request.server.storage}/{wanted['oid']}"
            answer["actions"] = {"upload": {"href": upload}, "verify": {"href": verify}}
        answers.append(answer)
    request.send_json({"transfer": "basic", "objects": answers})


@route("POST", rf"/{REPOSITORY}\.git/info/lfs/verify")
def verify(request: Handler, repo: str) -> None:
    request.repository(repo, write=True)
    wanted = request.json()
    if len(request.server.objects.get(wanted["oid"], b"")) != wanted["size"]:
        raise HubError(404, f"Object {wanted['oid']} is not there")
    request.send_json({})


@route("GET PUT", "/objects/(?P<name>[0-9a-f]{64})")
def storage(request: Handler, name: str) -> None:
    if "Authorization" in request.headers:
        raise HubError(400, "The storage was shown a token")
    if request.command == "PUT":
        if hashlib.sha256(request.body).hexdigest() != name:
            raise HubError(400, "The content has another checksum")
        request.server.objects[name] = request.body
    elif name not in request.server.objects:
        raise HubError(404, "No such object")
    request.send(200, request.server.objects[name] if request.command == "GET" else b"")


@route("POST", f"/api/models/{REPOSITORY}/commit/{REVISION}")
def commit(request: Handler, repo: str, revision: str) -> None:
    repository = request.repository(repo, write=True)
    files = dict(repository.commits[repository.resolve(revision)])
    message = ""
    for line in request.body.splitlines():
        part = json.loads(line)
        key, value = part["key"], part["value"]
        if key == "header":
            message = value["summary"]
        elif key == "file":
            content = base64.b64decode(value["content"])
            files[value["path"]] = git_object_id(content)
            request.server.objects[git_object_id(content)] = content
        elif key == "lfsFile":
            if value["oid"] not in request.server.objects:
                raise HubError(400, f"The content of {value['path']} was not uploaded")
            files[value["path"]] = value["oid"]
        else:
            raise HubError(400, f"This test server knows no {key} in a commit")
    made = repository.commit(f"refs/heads/{revision}", files, message)
    request.send_json({"commitUrl": f"{request.server.endpoint}/{repo}/commit/{made}", "commitOid": made})


@route("POST", f"/api/models/{REPOSITORY}/branch/(?P<branch>[^/]+)")
def create_branch(request: Handler, repo: str, branch: str) -> None:
    start = request.json().get("startingPoint", "main")
    create_reference(request, repo, f"refs/heads/{branch}", start)


@route("POST", f"/api/models/{REPOSITORY}/tag/{REVISION}")
def create_tag(request: Handler, repo: str, revision: str) -> None:
    create_reference(request, repo, f"refs/tags/{request.json()['tag']}", revision)


def create_reference(request: Handler, repo: str, name: str, revision: str) -> None:
    repository = request.repository(repo, write=True)
    if name in repository.refs:
        raise HubError(409, f"Reference already exists: {name}")
    repository.refs[name] = repository.resolve(revision)
    request.send_json({})


@route("GET", f"/api/models/{REPOSITORY}/refs")
def references(request: Handler, repo: str) -> None:
    refs = request.repository(repo).refs.items()
    kinds = {"branches": "refs/heads/", "tags": "refs/tags/"}
    found = {
        kind: [
            {"name": name.removeprefix(prefix), "ref": name, "targetCommit": commit}
            for name, commit in refs
            if name.startswith(prefix)
        ]
        for kind, prefix in kinds.items()
    }
    request.send_json({**found, "converts": []})


@route("GET", f"/api/models/{REPOSITORY}(/revision/{REVISION})?")
def model_info(request: Handler, repo: str, revision: str) -> None:
    repository = request.repository(repo)
    commit = repository.resolve(revision or "main")
    siblings = [{"rfilename": path} for path in repository.commits[commit]]
    request.send_json({"id": repo, "sha": commit, "private": repository.private, "siblings": siblings, "tags": []})


@route("GET", f"/api/models/{REPOSITORY}/tree/{REVISION}(/(?P<path>.+))?")
def tree(request: Handler, repo: str, revision: str, path: str) -> None:
    repository = request.repository(repo)
    files = repository.commits[repository.resolve(revision)]
    folder = f"{path}/" if path else ""
    entries = {}
    for name, oid in files.items():
        if name.startswith(folder):
            first, *deeper = name.removeprefix(folder).split("/")
            if deeper and request.query.get("recursive", ["false"])[0].lower() != "true":
                entries[first] = {"type": "directory", "path": folder + first, "oid": git_object_id(b"")}
            else:
                size = len(request.server.objects[oid])
                large = {"lfs": {"oid": oid, "size": size, "pointerSize": 130}} if is_large(name) else {}
                entries[name] = {"type": "file", "path": name, "oid": oid, "size": size, **large}
    if path and not entries:
        raise HubError(404, f"{path} does not exist on {revision!r}", "EntryNotFound")
    request.send_json(list(entries.values()))


@route("GET HEAD", f"/{REPOSITORY}/resolve/{REVISION}/(?P<path>.+)")
def resolve(request: Handler, repo: str, revision: str, path: str) -> None:
    repository = request.repository(repo)
    commit = repository.resolve(revision)
    headers = {"X-Repo-Commit": commit}
    oid = repository.commits[commit].get(path)
    if oid is None:
        raise HubError(404, "Entry not found", "EntryNotFound", **headers)
    content = request.server.objects[oid]
    if is_large(path):
        headers |= {"X-Linked-Etag": f'"{oid}"', "X-Linked-Size": str(len(content))}
        request.send(302, headers={**headers, "Location": f"{request.server.storage}/{oid}"})
    else:
        request.send(200, content, {**headers, "ETag": f'"{oid}"'})
