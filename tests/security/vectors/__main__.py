"""`python -m tests.security.vectors`: writes all known answers anew, as the code gives them."""

from __future__ import annotations

from tests.security.vectors.topic import write
from tests.security.vectors.topics import TOPICS


def main() -> None:
    for name, topic in TOPICS.items():
        write(name, topic.made())
        print(f"{name}: {len(topic.cases)} cases")


if __name__ == "__main__":
    main()
