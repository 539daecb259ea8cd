package postgres

import (
	"crypto/md5"
	"errors"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/transport"
)

// newOutbox is a world with the queues in and out and the inbox in.handled.
func newOutbox(t *testing.T) *world {
	t.Helper()
	w := newBiz(t)
	ok(t, w.open().(transport.Installer).Install(t.Context(), inboxPlan("in.handled")))
	return w
}

func inboxPlan(names ...string) transport.Plan { return transport.Plan{Inboxes: names} }

func entryOf(inbox string, n int, ids ...string) transport.OutboxEntry {
	k := handledKey(n)
	e := transport.OutboxEntry{Inbox: inbox, Key: &k}
	for _, id := range ids {
		e.Ops = append(e.Ops, to("out", msg(id)))
	}
	return e
}

// storeTx stores an entry in a transaction, in which write writes.
func storeTx(t *testing.T, c transport.Conn, e transport.OutboxEntry, write func(tx pgx.Tx)) (transport.Tx, error) {
	t.Helper()
	tx, err := c.(transport.OutboxStore).BeginStore(t.Context(), e)
	ok(t, err)
	user, err := Tx(t.Context(), session{tx})
	ok(t, err)
	write(user)
	return tx, tx.Complete(t.Context(), nil)
}

func handled(t *testing.T, c transport.Conn, n int) bool {
	t.Helper()
	states, err := c.(transport.OutboxStore).FindHandled(t.Context(), "in.handled", []transport.HandledKey{handledKey(n)})
	ok(t, err)
	return states[0] == transport.Handled
}

func TestAMissingInboxIsNamed(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	send(t, c, to("in", msg("1")))
	d := receive(t, receiver(t, c, "in"), 1)[0]
	key := handledKey(1)
	d.(transport.HandledRecorder).RecordHandled("in.handled", &key)
	_, found := c.(transport.OutboxStore).FindHandled(t.Context(), "in.handled", []transport.HandledKey{key})
	_, inTx := storeTx(t, c, entryOf("in.handled", 1, "1"), func(pgx.Tx) {})
	for name, err := range map[string]error{
		"FindHandled": found, "Store": c.(transport.OutboxStore).Store(t.Context(), entryOf("in.handled", 1, "1")), "Complete of a transaction": inTx,
		"Complete": d.Complete(t.Context()), "CompleteWith": completeWith(t, d, to("out", msg("1"))),
	} {
		isErr(t, err, transport.ErrNoQueue)
		if !strings.Contains(err.Error(), "in.handled") {
			t.Errorf("%s: the error does not name the inbox: %v", name, err)
		}
	}
	w.wantRows(1, 0, 0)
}

func TestATableThatIsNoInboxIsLeftAsItIs(t *testing.T) {
	t.Parallel()
	w := newBiz(t)
	c := w.open()
	w.exec(`CREATE TABLE %s"theirs" (id int)`)
	err := c.(transport.Installer).Install(t.Context(), inboxPlan("theirs"))
	if err == nil || !strings.Contains(err.Error(), "is a table of another kind") {
		t.Errorf("installed: %v", err)
	}
	found, err := c.(transport.Verifier).Verify(t.Context(), inboxPlan("theirs"))
	ok(t, err)
	if len(found) != 1 || found[0].State != transport.Differs || !strings.Contains(found[0].Detail, "its table is no inbox") {
		t.Errorf("found %v", found)
	}
	if err := c.(transport.Remover).Remove(t.Context(), "theirs"); err == nil {
		t.Error("the table was removed")
	}
	w.exec(`SELECT id FROM %s"theirs"`)
}

// An inbox of a later version is refused. An inbox without a version is completed.
func TestVersionsOfAnInbox(t *testing.T) {
	t.Parallel()
	w := newOutbox(t)
	c := w.open()
	w.exec(`UPDATE %sholdfast_handled SET version = 7`)
	err := c.(transport.Installer).Install(t.Context(), inboxPlan("in.handled"))
	if err == nil || !strings.Contains(err.Error(), "of version 7, this program knows version 1: update this program") {
		t.Errorf("installed: %v", err)
	}
	found, err := c.(transport.Verifier).Verify(t.Context(), inboxPlan("in.handled"))
	ok(t, err)
	if len(found) != 1 || found[0].State != transport.Differs || !strings.Contains(found[0].Detail, "update this program") {
		t.Errorf("found %v", found)
	}
	w.exec(`DELETE FROM %sholdfast_handled`)
	found, err = c.(transport.Verifier).Verify(t.Context(), inboxPlan("in.handled"))
	ok(t, err)
	if len(found) != 1 || found[0].State != transport.Missing {
		t.Errorf("found %v", found)
	}
	ok(t, c.(transport.Installer).Install(t.Context(), inboxPlan("in.handled")))
	found, err = c.(transport.Verifier).Verify(t.Context(), inboxPlan("in.handled"))
	ok(t, err)
	if len(found) != 0 {
		t.Errorf("found %v after the installation", found)
	}
}

func TestAMissingRightOnAnInboxIsReported(t *testing.T) {
	t.Parallel()
	w := newOutbox(t)
	user := w.unprivileged()
	u, err := url.Parse(user)
	ok(t, err)
	c := w.openAs(Transport{URL: user})
	s := c.(transport.OutboxStore)
	ok(t, s.Store(t.Context(), entryOf("in.handled", 1, "1")))
	for right, try := range map[string]func() error{
		"INSERT": func() error { return s.Store(t.Context(), entryOf("in.handled", 2, "1")) },
		"SELECT": func() error {
			_, err := s.FindHandled(t.Context(), "in.handled", []transport.HandledKey{handledKey(1)})
			return err
		},
		"DELETE": func() error {
			_, err := c.(transport.InboxInspector).ForgetHandled(t.Context(), "in.handled", []transport.HandledKey{handledKey(1)})
			return err
		},
	} {
		w.exec(`REVOKE ` + right + ` ON ` + w.schema + `."in.handled" FROM ` + u.User.Username())
		err := try()
		if err == nil || !strings.Contains(err.Error(), "permission denied for table in.handled") ||
			!errors.Is(err, transport.ErrDenied) || errors.Is(err, transport.ErrUnreachable) {
			t.Errorf("without %s: %v", right, err)
		}
		w.exec(`GRANT ` + right + ` ON ` + w.schema + `."in.handled" TO ` + u.User.Username())
	}
	w.wantRows(0, 1, 0)
}

func TestADatabaseThatOnlyReadsStoresNothing(t *testing.T) {
	t.Parallel()
	w := newOutbox(t)
	c := w.openAs(Transport{URL: testURL() + "&default_transaction_read_only=on"})
	isErr(t, c.(transport.OutboxStore).Store(t.Context(), entryOf("in.handled", 1, "1")), transport.ErrUnreachable)
	_, err := storeTx(t, c, entryOf("in.handled", 1, "1"), func(pgx.Tx) {})
	isErr(t, err, transport.ErrUnreachable)
	if handled(t, c, 1) {
		t.Error("the key was recorded")
	}
	w.wantRows(0, 0, 0)
}

// A rival of a transaction with a snapshot has handled the message. A transaction that keeps a
// snapshot cannot see a key that a rival has recorded since. The unique index can, unless the
// server finds a conflict first.
func TestRivalOfASnapshotHasHandled(t *testing.T) {
	t.Parallel()
	w := newOutbox(t)
	for _, level := range []string{"repeatable%20read", "serializable"} {
		c := w.openAs(Transport{URL: testURL() + "&default_transaction_isolation=" + level})
		n := len(level)
		tx, err := storeTx(t, c, entryOf("in.handled", n, "late"), func(tx pgx.Tx) {
			ok(t, w.write(tx, n))
			ok(t, c.(transport.OutboxStore).Store(t.Context(), entryOf("in.handled", n, "first")))
		})
		if !errors.Is(err, transport.ErrAlreadyHandled) && (err == nil || !tx.(transport.ConflictDetector).Conflict(err)) {
			t.Errorf("%s: %v, want %v or a conflict", level, err, transport.ErrAlreadyHandled)
		}
		_, err = storeTx(t, c, entryOf("in.handled", n, "again"), func(tx pgx.Tx) { ok(t, w.write(tx, n)) })
		isErr(t, err, transport.ErrAlreadyHandled)
	}
	w.wantRows(0, 2, 0)
}

// Whether a commit whose answer was lost has happened is found by the key.
func TestACommitWhoseAnswerWasLostIsFoundByItsKey(t *testing.T) {
	t.Parallel()
	w := newOutbox(t)
	u, err := url.Parse(testURL())
	ok(t, err)
	for n := range 10 {
		proxy := brokertest.NewProxy(t, u.Host)
		commits := n%2 == 1
		way := proxy.URL(t, testURL())
		if commits {
			way += "&default_query_exec_mode=exec" // the text of a statement travels with its execution
		}
		c := w.openAs(Transport{URL: way})
		_, err := storeTx(t, c, entryOf("in.handled", n, "first"), func(tx pgx.Tx) {
			ok(t, w.write(tx, n))
			if commits {
				proxy.CutAtAnswer("commit", 1)
			} else {
				proxy.CutAt("commit", 1)
			}
		})
		if err == nil || errors.Is(err, transport.ErrAlreadyHandled) {
			t.Errorf("%d: %v, want that the outcome is unknown", n, err)
		}
		known := handled(t, w.open(), n)
		if known != commits {
			t.Errorf("%d: the commit has happened: %t, want %t", n, known, commits)
		}
		_, err = storeTx(t, w.open(), entryOf("in.handled", n, "again"), func(tx pgx.Tx) {
			if !known {
				ok(t, w.write(tx, n))
			}
		})
		if errors.Is(err, transport.ErrAlreadyHandled) != known || err != nil && !known {
			t.Errorf("%d: the key was known: %t, and then %v", n, known, err)
		}
	}
	w.wantRows(0, 10, 10)
}

func TestRivalsRemoveEachOldIDOnce(t *testing.T) {
	t.Parallel()
	w := newOutbox(t)
	w.exec(`INSERT INTO %s"in.handled" (key, at, sum) SELECT gen_random_uuid(), now() - interval '2 days', 1 FROM generate_series(1, 20000)`)
	w.exec(`INSERT INTO %s"in.handled" (key, at, sum) SELECT gen_random_uuid(), now() - interval '2 hours', 1 FROM generate_series(1, 1000)`)
	var removed atomic.Int64
	var rivals sync.WaitGroup
	for _, s := range []*store{w.store(), w.store(), w.pooled()} {
		rivals.Go(func() {
			for n := int64(1); n > 0; {
				var err error
				if n, err = s.Forget(t.Context(), "in.handled", 24*time.Hour, 500); err != nil {
					t.Error(err)
				}
				removed.Add(n)
			}
		})
	}
	rivals.Wait()
	if n := removed.Load(); n != 20_000 || w.count("in.handled") != 1000 {
		t.Errorf("%d ids were removed and %d are left, want 20000 and 1000", n, w.count("in.handled"))
	}
}

// Old ids are removed by time and by name at once. The order of their keys is not that in which
// they were recorded.
func TestIDsAreRemovedByTimeAndByNameAtOnce(t *testing.T) {
	t.Parallel()
	const total, some = 20_000, 500
	w := newOutbox(t)
	w.exec(`INSERT INTO %s"in.handled" (key, at, sum)
SELECT md5(i::text)::uuid, now() - interval '2 days' + i * interval '1 millisecond', 1 FROM generate_series(1, 20000) AS i`)
	keys := make([]transport.HandledKey, total)
	for i := range keys {
		keys[i].ID = md5.Sum([]byte(strconv.Itoa(i + 1))) //nolint:gosec // not for security
	}
	var removed atomic.Int64
	count := func(n int64, err error) int64 {
		if err != nil {
			t.Error(err)
		}
		removed.Add(n)
		return n
	}
	var rivals sync.WaitGroup
	for _, s := range []*store{w.store(), w.pooled()} {
		rivals.Go(func() {
			for count(s.Forget(t.Context(), "in.handled", 24*time.Hour, some)) > 0 {
			}
		})
		rivals.Go(func() {
			for chunk := range slices.Chunk(keys, some) {
				count(s.ForgetKeys(t.Context(), "in.handled", chunk))
			}
		})
	}
	rivals.Wait()
	if n := removed.Load(); n != total || w.count("in.handled") != 0 {
		t.Errorf("%d ids were removed and %d are left, want %d and 0", n, w.count("in.handled"), total)
	}
}
