"""Prints a bill of materials (CycloneDX 1.6) of the image it runs in: Debian's packages, Python's.

It asks what is installed, not what was meant to be, and needs nothing but Python and dpkg.
"""

import json
import platform
import re
import subprocess
import sys
import sysconfig
import uuid
from datetime import UTC, datetime
from importlib.metadata import PackageMetadata, distributions
from pathlib import Path
from urllib.parse import quote

Json = dict[str, object]

# The base image's own packages, the environment's, and the project's.
FOLDERS = (
    sysconfig.get_path("purelib", vars={"base": sys.base_prefix}),
    sysconfig.get_path("purelib"),
    "/opt/app",
)


def main() -> None:
    """Prints it."""
    everything = [_interpreter(), *_python_packages(), *_debian_packages()]
    (project,) = [c for c in everything if c["name"] == "mpc-vote"]
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid4()}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
            "component": {**project, "type": "container", "bom-ref": "image"},
        },
        "components": sorted(everything, key=lambda component: str(component["purl"])),
    }
    print(json.dumps(document, indent=1))


def _component(kind: str, name: str, version: str, licences: list[Json]) -> Json:
    where, _, qualifiers = kind.partition("?")
    purl = f"pkg:{where}/{quote(name)}@{quote(version)}" + (qualifiers and f"?{qualifiers}")
    return {
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
        "licenses": licences,
    }


def _interpreter() -> Json:
    return _component("generic", "python", platform.python_version(), [{"expression": "PSF-2.0"}])


def _python_packages() -> list[Json]:
    """Each (name, version) once, wherever it is."""
    found = {}
    for each in distributions(path=list(dict.fromkeys(FOLDERS))):
        name = re.sub(r"[-_.]+", "-", each.metadata["Name"]).lower()
        found[name, each.version] = _component("pypi", name, each.version, _licences(each.metadata))
    return list(found.values())


def _licences(metadata: PackageMetadata) -> list[Json]:
    """As the package states it: an expression, else its classifiers, else a line of text."""
    if "License-Expression" in metadata:
        return [{"expression": metadata["License-Expression"]}]
    classifiers = metadata.get_all("Classifier") or []
    named = [c.rpartition(" :: ")[2] for c in classifiers if c.startswith("License :: ")]
    text = (metadata.get_all("License") or [""])[0]
    return _named(named or [text.strip().partition("\n")[0]])


def _debian_packages() -> list[Json]:
    fields = "${Package} ${Version} ${Architecture}\n"
    listing = subprocess.check_output(["dpkg-query", "-W", "-f", fields], text=True)
    return [
        _component(f"deb/debian?arch={arch}", name, version, _debian_licences(name))
        for name, version, arch in (line.split() for line in listing.splitlines())
    ]


def _debian_licences(name: str) -> list[Json]:
    """The short names in its copyright file, where that has the machine-readable form."""
    file = Path("/usr/share/doc", name, "copyright")
    text = file.read_text(errors="replace") if file.exists() else ""
    return _named(sorted(set(re.findall(r"^License: *(\S.*)$", text, re.MULTILINE))))


def _named(names: list[str]) -> list[Json]:
    return [{"license": {"name": name or "not stated"}} for name in names or [""]]


if __name__ == "__main__":
    main()
