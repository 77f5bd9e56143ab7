"""Who may ask: keys and their scopes, hosts and pages of other places."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from served import Running, build_gallery, encode, save_tiny, serving

from vitrail.serving.guard import is_loopback, scope_of
from vitrail.serving.keys import read_keys
from vitrail.serving.refusals import without_places
from vitrail.serving.running import check_place

READ, WRITE = "r" * 20, "w" * 20


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.txt"
    path.write_text(f"# who may\nread {READ} the shop\nwrite {WRITE}  # us\n\n")
    path.chmod(0o600)
    return path


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory, keys: Path) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("served")
    model = save_tiny(folder / "pets")
    gallery = build_gallery(folder / "colours", model)
    with serving(str(model), str(gallery), keys=keys, origins=("https://shop.example",)) as server:
        yield server


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_keys_and_their_scopes(locked: Running) -> None:
    with locked.client() as client:
        for path in ("/v2/health/live", "/v2/health/ready", "/v2", "/", "/docs", "/static/page.js", "/openapi.json"):
            assert client.get(path).status_code == 200
        for path in ("/v1/models", "/v2/models/pets", "/metrics", "/v1/galleries/colours"):
            refused = client.get(path)
            assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
            assert client.get(path, headers=bearer("x" * 20)).status_code == 401
            assert client.get(path, headers=bearer(READ)).status_code == 200
            assert client.get(path, headers={"X-API-Key": READ}).status_code == 200
        asked = {"files": {"image": encode()}}
        assert client.post("/v1/models/pets/predict", **asked).status_code == 401  # type: ignore[arg-type]
        assert client.post("/v1/models/pets/predict", headers=bearer(READ), **asked).status_code == 200  # type: ignore[arg-type]
        adding = {"files": {"image": encode("red", seed=400)}, "data": {"label": "red"}}
        path = "/v1/galleries/colours/images"
        assert client.post(path, **adding).status_code == 401  # type: ignore[arg-type]
        forbidden = client.post(path, headers=bearer(READ), **adding)  # type: ignore[arg-type]
        assert (forbidden.status_code, "may read and not write" in forbidden.text) == (403, True)
        assert client.delete(f"{path}?label=red", headers=bearer(READ)).status_code == 403
        assert client.post(path, headers=bearer(WRITE), **adding).status_code == 201  # type: ignore[arg-type]


def test_a_named_origin_may_ask_and_no_other(locked: Running) -> None:
    with locked.client(headers=bearer(READ)) as client:
        allowed = client.get("/v1/models", headers={"Origin": "https://shop.example"})
        assert allowed.headers["access-control-allow-origin"] == "https://shop.example"
        other = client.get("/v1/models", headers={"Origin": "https://other.example"})
        assert "access-control-allow-origin" not in other.headers
        for origin, told in (("https://shop.example", "https://shop.example"), ("https://other.example", None)):
            refused = client.get("/v1/models", headers={"Origin": origin, "Authorization": "Bearer wrong"})
            assert (refused.status_code, refused.headers.get("access-control-allow-origin")) == (401, told)


def test_all_origins_may_read_why_they_are_refused_where_all_may_ask(tmp_path: Path, keys: Path) -> None:
    with (
        serving(str(save_tiny(tmp_path / "pets")), keys=keys, origins=("*",)) as server,
        server.client() as client,
    ):
        refused = client.get("/v1/models", headers={"Origin": "https://any.example"})
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, "https://any.example")


def test_without_keys_pages_of_other_places_are_refused(tmp_path: Path) -> None:
    with serving(str(save_tiny(tmp_path / "pets"))) as server, server.client() as client:
        rebound = client.get("/v1/models", headers={"Host": "evil.example"})
        assert rebound.status_code == 403
        foreign = client.post(
            "/v1/models/pets/predict", files={"image": encode()}, headers={"Origin": "https://evil.example"}
        )
        assert foreign.status_code == 403
        own = client.get("/v1/models", headers={"Origin": server.address})
        assert own.status_code == 200
        assert "access-control-allow-origin" not in own.headers
        assert client.get("/v1/models", headers={"Host": f"localhost:{server.port}"}).status_code == 200


@pytest.mark.parametrize(
    ("method", "path", "scope"),
    [
        ("GET", "/v2/health/ready", "open"),
        ("GET", "/metrics", "read"),
        ("POST", "/v1/models/a/predict", "read"),
        ("POST", "/v2/models/a/infer", "read"),
        ("POST", "/v1/galleries/a/images", "write"),
        ("DELETE", "/v1/galleries/a/search", "write"),
        ("PUT", "/v1/models/a/predict", "write"),
        ("POST", "/v1/anything/new", "write"),
        ("GET", "/static/../v1/models", "open"),
    ],
)
def test_what_is_not_known_to_be_harmless_needs_a_key_that_writes(method: str, path: str, scope: str) -> None:
    assert scope_of(method, path) == scope


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "holds no key"),
        ("# nothing\n", "holds no key"),
        (f"admin {READ}", "line 1: this is no key"),
        ("read", "line 1: this is no key"),
        (f"read {READ}\nread short", "line 2: the key is shorter than 16"),
        (f"read {READ}\nwrite {READ}", "listed twice"),
        (f"read {READ}\nread schlüssel-{READ}", "line 2: the key has signs beyond ASCII"),
    ],
)
def test_wrong_files_of_keys(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ValueError, match=reason) as caught:
        read_keys(path)
    assert READ not in str(caught.value)


def test_a_file_of_keys_that_everybody_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text(f"read {READ}")
    path.chmod(0o644)
    with pytest.raises(ValueError, match="chmod o-r"):
        read_keys(path)
    with pytest.raises(ValueError, match="can't be read"):
        read_keys(tmp_path / "none")


def test_other_machines_need_keys() -> None:
    check_place("127.0.0.1", has_keys=False)
    check_place("::1", has_keys=False)
    check_place("0.0.0.0", has_keys=True)
    for host in ("0.0.0.0", "192.168.1.5", "example.org", "::"):
        with pytest.raises(ValueError, match="add --keys FILE"):
            check_place(host, has_keys=False)
    assert not is_loopback("localhost.evil.example")


def test_messages_tell_no_places() -> None:
    assert without_places("the gallery /srv/data/shades is damaged: gallery.json") == (
        "the gallery ... is damaged: gallery.json"
    )
    assert without_places("'/home/me/x.png' and C:\\data\\x") == "'...' and ..."
    assert without_places("give 1/2 or image/png, see /docs") == "give 1/2 or image/png, see /docs"
