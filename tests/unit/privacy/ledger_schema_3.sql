PRAGMA application_id = 1836086860;
PRAGMA user_version = 3;
BEGIN TRANSACTION;
CREATE TABLE budgets (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            epsilon_agent REAL,
            epsilon_instance REAL,
            delta REAL NOT NULL,
            set_at TEXT NOT NULL
        ) STRICT;
INSERT INTO "budgets" VALUES(1,NULL,8.0,0.001,'2026-11-18T20:39:40.604196+00:00');
CREATE TABLE origin (
            only INTEGER PRIMARY KEY CHECK (only = 1),
            ledger_id TEXT NOT NULL,
            owner TEXT
        ) STRICT;
INSERT INTO "origin" VALUES(1,'e4eced276e6368aeedc1c319d8b98842','agent/alice');
CREATE TABLE spends (
            seq INTEGER PRIMARY KEY AUTOINCREMENT,
            round_id TEXT NOT NULL UNIQUE,
            mechanism TEXT NOT NULL,
            note TEXT NOT NULL,
            charged_at TEXT NOT NULL
        ) STRICT;
INSERT INTO "spends" VALUES(1,'round-1','{"agent": {"cells": 1, "l1": 1, "l2_squared": 1, "step": 1}, "instance": {"cells": 2, "l1": 2, "l2_squared": 2, "step": 1}, "levels": [[1, 11], [2, 8], [3, 5], [6, 67]], "queries": 100, "type": "coin_vote", "unit": 1}','one_hot, sigma 25','2026-11-18T20:39:40.714223+00:00');
INSERT INTO "spends" VALUES(2,'round-2','{"agent": {"cells": null, "l1": 10, "l2_squared": 100, "step": null}, "instance": {"cells": 2, "l1": 2, "l2_squared": 2, "step": 1}, "levels": [[1, 4], [2, 7], [4, 6], [8, 98]], "queries": 200, "type": "coin_vote", "unit": 1}','knn_count, sigma 40','2026-11-18T20:39:40.778410+00:00');
INSERT INTO "spends" VALUES(3,'round-3','{"agent": {"cells": null, "l1": 256, "l2_squared": 65536, "step": null}, "instance": {"cells": 2, "l1": 52, "l2_squared": 1352, "step": 26}, "queries": 50, "type": "skellam_vote", "variance": 26214400}','knn_frequency, sigma 20','2026-11-18T20:39:40.804377+00:00');
INSERT INTO "spends" VALUES(4,'round-4','{"agent": {"cells": 2, "l1": 2, "l2_squared": 2, "step": 1}, "instance": {"cells": 4, "l1": 4, "l2_squared": 4, "step": 1}, "levels": [[1, 4], [2, 4], [4, 4], [8, 68]], "queries": 20, "type": "coin_vote", "unit": 1}','multi_label, sigma 33.3','2026-11-18T20:39:40.863338+00:00');
CREATE TRIGGER spends_never_change BEFORE UPDATE ON spends
            BEGIN SELECT RAISE(ABORT, 'a spend is never changed'); END;
CREATE TRIGGER spends_never_vanish BEFORE DELETE ON spends
            BEGIN SELECT RAISE(ABORT, 'a spend is never taken back'); END;
CREATE TRIGGER origin_never_changes BEFORE UPDATE ON origin
            WHEN old.owner IS NOT NULL OR new.ledger_id <> old.ledger_id
            BEGIN SELECT RAISE(ABORT, 'a ledger keeps its id and its owner'); END;
CREATE TRIGGER origin_never_vanishes BEFORE DELETE ON origin
            BEGIN SELECT RAISE(ABORT, 'a ledger keeps its id and its owner'); END;
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('budgets',1);
INSERT INTO "sqlite_sequence" VALUES('spends',4);
COMMIT;
