"""The coordinator as a process."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from aggregator.coordinator.archive import Archive
from aggregator.coordinator.attendance import Attendance
from aggregator.coordinator.enrolment import EnrolmentServicer, RenewalServicer
from aggregator.coordinator.label_service import LabelServicer
from aggregator.coordinator.model_service import ModelServicer
from aggregator.coordinator.roster import Defaults
from aggregator.coordinator.rounds import RoundRunner
from aggregator.coordinator.settings import CoordinatorSettings
from aggregator.coordinator.tokens import TOKENS, Tokens
from aggregator.serving import dial_parties, serve
from mpc_vote.app import folder, process
from mpc_vote.app.config import ConfigError
from mpc_vote.app.process import CommandError
from mpc_vote.learning import students
from mpc_vote.learning.features import check_features, check_weights
from mpc_vote.pki import pem
from mpc_vote.pki.authority import AgentAuthority
from mpc_vote.pki.identity import Credentials, Role
from mpc_vote.plugins import PluginError
from mpc_vote.privacy.ledger import Budget, Ledger
from mpc_vote.proto.mpcvote.v1 import (
    agent_pb2_grpc,
    enrolment_pb2_grpc,
    label_pb2_grpc,
    model_pb2_grpc,
)
from mpc_vote.tasks import Task, TaskError
from mpc_vote.transport import rpc

log = logging.getLogger(__name__)


def command(arguments: Sequence[str]) -> int:
    """`mpc-vote coordinator`."""
    return process.run(CoordinatorSettings, arguments, serve_coordinator)


async def serve_coordinator(settings: CoordinatorSettings) -> None:
    """Runs a coordinator until it is told to stop."""
    credentials = Credentials.load(settings.certs, Role.COORDINATOR)
    _check_student(settings.student)
    tasks = _tasks(settings.task)
    _check_weights(settings.weights, tasks)
    async with contextlib.AsyncExitStack() as stack:
        stack.enter_context(folder.held(settings.data_dir))
        parties = await dial_parties(stack, credentials, settings.parties)
        archive = stack.enter_context(contextlib.closing(Archive(settings.data_dir)))
        budget = Budget(
            settings.budget_agent, settings.budget_instance, settings.delta, settings.budget_against
        )
        owner = str(credentials.identity)
        ledger = stack.enter_context(
            contextlib.closing(Ledger(settings.data_dir / "ledger.db", budget, owner))
        )
        for round_id in archive.fail_interrupted():
            log.warning("round %s was interrupted by a restart and has failed", round_id)
        for task in tasks.values():
            archive.add_task(task)
            log.info("serves task %s, digest %s", task.name, task.digest.hex())
        for agent, accepted in settings.accept_ledgers.items():
            archive.accept_ledger(agent, accepted)
            log.info("agent %s is known by ledger %s", agent, accepted)
        attendance = Attendance(archive, settings.revoked_agents, tasks)
        runner = RoundRunner(archive, ledger, attendance, parties, settings.aggregate_seconds)
        defaults = Defaults(
            parties=tuple(settings.parties),
            dealer=settings.dealer_name,
            engine=settings.engine,
            sigma=settings.sigma,
            min_sigma=settings.min_sigma,
            delta=settings.delta,
            quorum_fraction=settings.quorum_fraction,
            collusion=settings.collusion,
            answer_seconds=settings.answer_seconds,
            min_k=settings.min_k,
            max_k=settings.max_k,
            tasks=tasks,
        )
        labels = LabelServicer(
            archive, ledger, attendance, runner, parties, defaults, settings.max_open_rounds
        )
        stack.push_async_callback(labels.stop)
        models = ModelServicer(archive, settings.delta, settings.student, settings.weights)
        authority = _agent_authority(settings, credentials)
        renewal = RenewalServicer(authority, settings.revoked_agents)

        async def health() -> Mapping[str, bool]:
            return {
                **await labels.health(),
                **await models.health(),
                **await renewal.health(),
            }

        services: list[rpc.Service] = [
            (label_pb2_grpc.add_LabelServiceServicer_to_server, labels),
            (agent_pb2_grpc.add_AgentServiceServicer_to_server, attendance),
            (model_pb2_grpc.add_ModelServiceServicer_to_server, models),
            (enrolment_pb2_grpc.add_RenewalServiceServicer_to_server, renewal),
        ]

        async def close() -> None:
            # Clients hear why their rounds end, and agents need not be cut off.
            await labels.stop()
            attendance.stop()

        servers = [rpc.Server(credentials, settings.listen, services, health)]
        if settings.enrol_listen is not None:
            if authority is None:
                raise ConfigError(
                    "--agent-authority: is missing: --enrol-listen needs it to sign agents"
                )
            tokens = Tokens(settings.data_dir / TOKENS)
            stack.enter_context(contextlib.closing(tokens))
            servers.append(_enrolment(settings.enrol_listen, credentials, tokens, authority))
        await serve(credentials, servers, close)


def _check_student(name: str) -> None:
    """Finds out now that a plug-in can't be loaded; what we bring is loaded when it is needed."""
    if name not in students.OWN:
        try:
            students.find_student(name)
        except PluginError as error:
            raise ConfigError(f"--student: {error}") from error


def _check_weights(weights: Mapping[str, Path], tasks: Mapping[str, Task]) -> None:
    """Refuses weights that no task has a use for, or that aren't there; none are loaded yet."""
    for name, path in weights.items():
        if name not in tasks:
            raise ConfigError(f"--weights: there is no task {name} among those of --task")
        if not path.exists():
            raise ConfigError(f"--weights: {path}: there is no such file or folder of weights")
        try:
            check_weights(tasks[name], path)
        except ValueError as error:
            raise ConfigError(f"--weights: {error}") from error


def _tasks(paths: Sequence[Path]) -> dict[str, Task]:
    """The tasks to serve, by name."""
    tasks: dict[str, Task] = {}
    for path in paths:
        try:
            task = Task.load(path)
            check_features(task)
        except TaskError as error:
            raise ConfigError(f"--task: {error}") from error
        if task.name in tasks:
            raise ConfigError(f"--task: {path}: there is a task {task.name} already: rename one")
        tasks[task.name] = task
    return tasks


def _agent_authority(
    settings: CoordinatorSettings, credentials: Credentials
) -> AgentAuthority | None:
    """The authority for agents, if this coordinator has one."""
    if settings.agent_authority is None:
        return None
    authority = AgentAuthority.load(settings.agent_authority)
    trusted = pem.parse_certificates(credentials.ca_pem, settings.certs / "ca.pem")
    if authority.root not in trusted:
        raise CommandError(
            f"the agents' authority in {settings.agent_authority} is under another root than "
            f"{settings.certs / 'ca.pem'}, so nobody would accept its agents"
        )
    return authority


def _enrolment(
    listen: str, credentials: Credentials, tokens: Tokens, authority: AgentAuthority
) -> rpc.Server:
    """The server on which agents enrol, apart from the one that asks for certificates."""
    servicer = EnrolmentServicer(tokens, authority)
    services = [(enrolment_pb2_grpc.add_EnrolmentServiceServicer_to_server, servicer)]
    server = rpc.Server(credentials, listen, services, servicer.health, open_to_anybody=True)
    log.info("agents enrol on %s", listen)
    return server
