"""Settings: precedence, where each value came from, and every way in which freegpu.toml can be wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from freegpu import config
from freegpu.errors import ConfigError


def write(home: Path, text: str) -> Path:
    home.mkdir(parents=True, exist_ok=True)
    (home / "freegpu.toml").write_text(text, encoding="utf-8")
    return home


def refusal(home: Path, text: str) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        config.load({}, home=write(home, text))
    return caught.value


def test_an_empty_configuration_has_everything_a_job_needs(tmp_path: Path) -> None:
    """No file, no environment: this machine, a folder store and SQLite, all inside the home."""
    settings = config.load({}, home=tmp_path)
    assert settings.store == f"folder:{tmp_path}/store"
    assert settings.db == f"{tmp_path}/state.db"
    assert [p.adapter for p in settings.platforms.values()] == ["local"]
    assert {settings.sources[name] for name in ("store", "db", "poll_s")} == {"default"}


def test_loading_settings_creates_nothing(tmp_path: Path) -> None:
    """Looking at the settings of a home that is not there does not make it."""
    config.load({}, home=tmp_path / "not" / "there")
    assert list(tmp_path.iterdir()) == []


def test_the_environment_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    """Precedence, and each value tells its origin, the file with the line."""
    write(tmp_path, 'beat_s = 3\n\n# where\nstore = "folder:/from/file"\ndb = "/from/file.db"\n')
    settings = config.load(
        {"FREEGPU_HOME": str(tmp_path), "FREEGPU_STORE": "folder:/from/environment"}
    )
    assert settings.store == "folder:/from/environment"
    assert settings.db == "/from/file.db"
    assert settings.sources["home"] == "FREEGPU_HOME"
    assert settings.sources["store"] == "FREEGPU_STORE"
    assert settings.sources["db"] == f"{tmp_path}/freegpu.toml:5"
    assert settings.sources["beat_s"] == f"{tmp_path}/freegpu.toml:1"
    assert settings.sources["poll_s"] == "default"


def test_an_empty_variable_counts_as_unset(tmp_path: Path) -> None:
    """`FREEGPU_STORE= freegpu ...` is how a shell user takes a variable away."""
    settings = config.load({"FREEGPU_STORE": "", "FREEGPU_DB": ""}, home=tmp_path)
    assert settings.sources["store"] == settings.sources["db"] == "default"


def test_relative_paths_of_the_file_are_relative_to_it_and_of_the_environment_to_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A settings file means the same from every folder."""
    home = write(tmp_path / "home", 'store = "shared"\n')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    settings = config.load({"FREEGPU_DB": "x/../my.db"}, home=home)
    assert settings.store == f"folder:{home}/shared"
    assert settings.db == f"{tmp_path}/here/my.db"


def test_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`~` in a quoted path is what the shell would have made of it."""
    monkeypatch.setenv("HOME", "/home/somebody")
    settings = config.load(
        {"FREEGPU_STORE": "folder:~/drive", "FREEGPU_DB": "~/l.db"}, home=tmp_path
    )
    assert (settings.store, settings.db) == ("folder:/home/somebody/drive", "/home/somebody/l.db")


@pytest.mark.parametrize(
    "url", ["s3://bucket/prefix", "postgresql://me:pw@host/db?x=1", "drive:abc"]
)
def test_urls_are_kept_as_they_are(tmp_path: Path, url: str) -> None:
    """What has a scheme is not a path, even where this version does not know the scheme."""
    settings = config.load({"FREEGPU_STORE": url, "FREEGPU_DB": url}, home=tmp_path)
    assert settings.store == settings.db == url


def test_without_a_named_home_it_is_the_users_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """The convention of the operating system, and said to be the default."""
    monkeypatch.setenv("XDG_DATA_HOME", "/data/me")
    settings = config.load({})
    assert settings.home.name == "freegpu"
    assert settings.home.is_absolute()
    assert settings.sources["home"] == "default"


def test_platform_tables_become_platforms_with_their_options(tmp_path: Path) -> None:
    """The adapter is named like the platform unless it says otherwise; the rest is the adapter's."""
    text = (
        "[platforms.lab]\n"
        'adapter = "my.module:Lab"\n'
        "window = {kind = 'rolling', limit_s = 90}\n"
        "[platforms.kaggle]\n"
        "[platforms.old]\n"
        "enabled = false\n"
    )
    platforms = config.load({}, home=write(tmp_path, text)).platforms
    assert set(platforms) == {"local", "lab", "kaggle"}
    assert platforms["lab"].adapter == "my.module:Lab"
    assert platforms["lab"].options == {"window": {"kind": "rolling", "limit_s": 90}}
    assert platforms["kaggle"].adapter == "kaggle"
    assert platforms["kaggle"].source == f"{tmp_path}/freegpu.toml:4"


def test_local_can_be_configured_and_removed(tmp_path: Path) -> None:
    """The default platform is one like any other."""
    home = write(tmp_path, "[platforms.local]\nslots = 2\n")
    assert config.load({}, home=home).platforms["local"].options == {"slots": 2}
    home = write(tmp_path, "[platforms.local]\nenabled = false\n")
    assert config.load({}, home=home).platforms == {}


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("stor", "store"), ("poll", "poll_s"), ("DB", "db"), ("platform", "platforms")],
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(
    tmp_path: Path, wrong: str, meant: str
) -> None:
    """A misspelt setting would silently mean the default."""
    error = refusal(tmp_path, f"\n{wrong} = 1\n")
    assert error.message.startswith(f"{tmp_path}/freegpu.toml:2: ")
    assert f"did you mean {meant}?" in error.message
    assert error.exit_code == 10


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("poll_s = 'fast'", "1: poll_s must be a number, found 'fast'"),
        ("poll_s = true", "1: poll_s must be a number, found true"),
        ("poll_s = inf", "1: poll_s must be a number, found inf"),
        ("beat_s = -1", "1: beat_s is -1; it must be between 0.05 and 3600"),
        ("silent_polls = 2.5", "1: silent_polls must be a whole number, found 2.5"),
        ("# a\nstore = 3", "2: store must be text, found 3"),
        ("store = ''", "1: store must be text, found ''"),
        ("platforms = 3", "1: platforms must be tables, found 3"),
        (
            "[platforms]\nkaggle = 1",
            "2: platforms.kaggle must be a table, found 1",
        ),
        ("[platforms.'My Lab']", "1: 'My Lab' cannot be a platform's name"),
        (
            "[platforms.a]\nenabled = 'no'",
            "2: platforms.a.enabled must be true or false, found 'no'",
        ),
        ("[platforms.a]\nadapter = []", "2: platforms.a.adapter must be text, found a list"),
        ("[unknown.table]\nx = 1", "1: there is no setting 'unknown'"),
    ],
)
def test_a_wrong_value_is_named_with_file_line_and_what_is_allowed(
    tmp_path: Path, text: str, sentence: str
) -> None:
    """One sentence that says where, what was found and what is allowed."""
    assert refusal(tmp_path, text).message == f"{tmp_path}/freegpu.toml:{sentence}"


@pytest.mark.parametrize(
    ("text", "start"),
    [
        ("a = 1\nstore = \n", "2: not valid TOML: invalid value"),
        ("store = 'a'\nstore = 'b'\n", "2: not valid TOML: cannot overwrite a value"),
        ("store", " not valid TOML: expected '='"),
        ("a = " + "[" * 5000, " not valid TOML: "),
    ],
)
def test_a_file_that_is_not_toml_says_where_it_stops_being_it(
    tmp_path: Path, text: str, start: str
) -> None:
    """The parser's reason in our words, with the line in front where it is known."""
    assert refusal(tmp_path, text).message.startswith(f"{tmp_path}/freegpu.toml:{start}")


def test_a_file_in_another_encoding_is_named_with_its_line(tmp_path: Path) -> None:
    """Editors on other systems save Latin-1 and UTF-16."""
    (tmp_path / "freegpu.toml").write_bytes("# ok\n# caf\xe9\n".encode("latin-1"))
    with pytest.raises(ConfigError, match=r"freegpu\.toml:2: not UTF-8"):
        config.load({}, home=tmp_path)


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    """Some editors write one in front of UTF-8."""
    (tmp_path / "freegpu.toml").write_bytes(b"\xef\xbb\xbfbeat_s = 3\n")
    assert config.load({}, home=tmp_path).beat_s == 3


def test_names_inside_multi_line_text_are_not_taken_for_settings(tmp_path: Path) -> None:
    """Line numbers stay right beside a multi-line string."""
    text = '[platforms.x]\nnote = """\nadapter = 1\n"""\nadapter = 5\n'
    assert refusal(tmp_path, text).message.startswith(f"{tmp_path}/freegpu.toml:5: ")


def test_a_settings_file_that_cannot_be_read_is_one_sentence(tmp_path: Path) -> None:
    """A folder of that name, or missing permissions; never a traceback."""
    (tmp_path / "freegpu.toml").mkdir()
    with pytest.raises(ConfigError, match=r"freegpu\.toml cannot be read"):
        config.load({}, home=tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_a_forbidden_settings_file_is_one_sentence(tmp_path: Path) -> None:
    """The hint says what to do about it."""
    write(tmp_path, "beat_s = 3").joinpath("freegpu.toml").chmod(0)
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        config.load({}, home=tmp_path)
    assert "FREEGPU_HOME" in caught.value.hint


def test_passwords_in_urls_are_blotted_out_for_showing() -> None:
    """What is printed may be pasted into an issue."""
    shown = config.without_password("postgresql://me:s3cr3t@host:5432/db?password=s3cr3t&x=1")
    assert shown == "postgresql://me:***@host:5432/db?password=***&x=1"
    assert config.without_password("folder:/a/b") == "folder:/a/b"


def test_a_platform_may_see_the_store_another_way(tmp_path: Path) -> None:
    """`store` in its table is not the adapter's option, and what the other platforms see stays as it is."""
    (tmp_path / "freegpu.toml").write_text(
        'store = "sftp://me@box/data"\n[platforms.box]\nadapter = "local"\nstore = "folder:/data"\n'
    )
    settings = config.load({}, home=tmp_path)
    assert settings.store_for("box") == "folder:/data"
    assert settings.store_for("local") == "sftp://me@box/data"
    assert settings.store_for("unheard") == "sftp://me@box/data"
    assert "store" not in settings.platforms["box"].options
