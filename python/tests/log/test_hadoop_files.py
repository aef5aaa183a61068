"""Hadoop's files, from which the commands take keys and endpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from spark_cec.adapters.hadoop_settings import find_options, read_hadoop_files, use_settings
from spark_cec.cli.app import app
from spark_cec.errors import LogLocationError

SITE = """<?xml version="1.0"?>
<configuration>
  <property><name>fs.s3a.endpoint</name><value> http://127.0.0.1:9000 </value><final>true</final></property>
  <property><name>fs.s3a.access.key</name><value>key</value></property>
  <property><name>fs.s3a.secret.key</name><value>secret</value></property>
  <property><name>fs.s3a.session.token</name><value>${env.TOKEN}</value></property>
  <property><name>hadoop.tmp.dir</name><value/></property>
</configuration>
"""


def test_the_settings_of_core_site(tmp_path: Path) -> None:
    (tmp_path / "core-site.xml").write_text(SITE)
    found = read_hadoop_files(tmp_path)
    assert set(found) == {"fs.s3a.endpoint", "fs.s3a.access.key", "fs.s3a.secret.key"}
    use_settings(found)
    try:
        options = find_options("s3", "s3a://bucket/x")
    finally:
        use_settings({})
    assert (options["key"], options["secret"]) == ("key", "secret")
    assert options["endpoint_url"] == "http://127.0.0.1:9000"


def test_a_directory_without_files_has_no_settings(tmp_path: Path) -> None:
    assert read_hadoop_files(tmp_path) == read_hadoop_files(tmp_path / "missing") == {}


def test_a_file_that_is_no_xml_is_named(tmp_path: Path) -> None:
    (tmp_path / "hdfs-site.xml").write_text("<configuration>")
    with pytest.raises(LogLocationError, match=r"hdfs-site\.xml.*it is no XML .*unset HADOOP_CONF_DIR"):
        read_hadoop_files(tmp_path)


def test_a_command_takes_the_settings_of_hadoop_conf_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    (tmp_path / "core-site.xml").write_text(SITE)
    try:
        CliRunner().invoke(app, ["inspect", str(tmp_path)])
        assert find_options("s3", "s3a://bucket/x")["key"] == "key"
    finally:
        use_settings({})
    (tmp_path / "core-site.xml").write_text("<configuration>")
    refused = CliRunner().invoke(app, ["inspect", str(tmp_path)])
    assert refused.exit_code == 2 and "core-site.xml" in refused.stderr and refused.stderr.count("\n") == 1
