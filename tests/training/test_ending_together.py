"""How one of several processes ends, without starting several."""

from __future__ import annotations

import os
import signal
import time

import pytest
import typer
from torch.distributed import DistNetworkError, TCPStore

from badpo.cli.options import reporting_errors
from badpo.training.processes import lost_peer, speaks_for_all
from tests.training.groups import free_port


@pytest.fixture
def one_of_two(monkeypatch):
    """As the launcher of two processes would start this one; the store is the launcher's."""
    before = signal.getsignal(signal.SIGTERM)
    port = free_port()
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", str(port))
    yield TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    signal.signal(signal.SIGTERM, before)


@reporting_errors
def told_to_end() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(5)


@reporting_errors
def left_alone() -> None:
    raise RuntimeError("[gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:3021")


@pytest.mark.parametrize("ended", [told_to_end, left_alone])
def test_the_first_to_end_says_why_and_the_others_are_silent(one_of_two, capsys, ended):
    with pytest.raises(typer.Exit) as first:
        ended()
    said = capsys.readouterr().err
    assert first.value.exit_code == 1
    assert said.count("another process of this run has ended") == 1 and "--resume" in said
    with pytest.raises(typer.Exit):
        left_alone()
    assert capsys.readouterr().err == ""


@reporting_errors
def alone_with_a_library() -> None:
    raise RuntimeError("no module of gloomy weights")


def test_an_error_of_its_own_is_not_laid_to_others(one_of_two, capsys):
    with pytest.raises(typer.Exit):
        alone_with_a_library()
    assert capsys.readouterr().err.startswith("RuntimeError: no module of gloomy weights")


def test_a_signal_while_ending_changes_nothing(one_of_two):
    with pytest.raises(typer.Exit):
        left_alone()
    os.kill(os.getpid(), signal.SIGTERM)


def test_a_process_that_cannot_reach_the_launcher_speaks(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("MASTER_PORT", raising=False)
    assert speaks_for_all()


def test_only_errors_between_processes_are_taken_for_a_lost_one(one_of_two):
    assert lost_peer(RuntimeError("Connection reset by peer"))
    assert lost_peer(DistNetworkError("the store is gone"))
    assert lost_peer(RuntimeError("NCCL error in: a.cpp, remote process exited or there was a network error"))
    assert not lost_peer(RuntimeError("NCCL error in: a.cpp:94, invalid usage"))
    assert not lost_peer(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))
    assert not lost_peer(ValueError("Connection closed by peer"))
