package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/internal/tablequeue"
	"github.com/holdfast-go/holdfast/transport"
)

func TestOpenSaysWhatIsWrongWithTheFile(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	newer := filepath.Join(dir, "newer.db")
	if err := dial(t, Transport{Path: newer}).Close(); err != nil {
		t.Fatal(err)
	}
	db := mine(t, newer)
	execute(t, db, `update holdfast_schema set version = 99`)
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}

	for _, c := range []struct{ name, path, want string }{
		{"no path", "", "set Transport.Path"},
		{"memory", ":memory:", "transport/inmemory"},
		{"a URI", "file:orders.db", "not a path"},
		{"missing directory", filepath.Join(dir, "missing", "orders.db"), "create it first"},
		{"file as directory", filepath.Join(write("plain", ""), "orders.db"), "not a directory"},
		{"a directory", dir, "not a regular file"},
		{"not a database", write("text.db", strings.Repeat("no database ", 100)), "not a SQLite database"},
		{"newer version", newer, "newer Holdfast"},
	} {
		t.Run(c.name, func(t *testing.T) {
			conn, err := (&Transport{Path: c.path}).Open(t.Context(), transport.Env{})
			if err == nil {
				conn.Close()
				t.Fatal("opened")
			}
			if !strings.HasPrefix(err.Error(), fmt.Sprintf("sqlite: open %q: ", c.path)) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %q does not say %q", err, c.want)
			}
			if c.path != "" && isOpen(c.path) {
				t.Error("the file is still open")
			}
		})
	}
}

func TestANegativeLeaseIsRefused(t *testing.T) {
	path := temp(t)
	conn, err := (&Transport{Path: path, Lease: -time.Second}).Open(t.Context(), transport.Env{})
	if err == nil {
		conn.Close()
		t.Fatal("opened")
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the file was made:", err)
	}
}

func TestOpenWorksForUnusualNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "orders 100% #1?mode=ro&ü.db")
	send(t, dial(t, Transport{Path: path}, queue), to(queue, "m"))
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

func TestARelativePathIsTheFileItWasAtOpen(t *testing.T) {
	t.Chdir(t.TempDir())
	conn := dial(t, Transport{Path: "orders.db"}, queue)
	t.Chdir(t.TempDir())
	send(t, conn, to(queue, "m"))
	receive(t, receiver(t, conn, queue)) // on connections opened since
	if _, err := os.Stat("orders.db"); err == nil {
		t.Error("a second file was made")
	}
}

func TestOpenLeavesWhatIsTheUsersAlone(t *testing.T) {
	path := temp(t)
	db := mine(t, path)
	execute(t, db, `create table orders (id text); insert into orders values ('o1'); pragma user_version = 42; pragma application_id = 7`)
	send(t, dial(t, Transport{Path: path}, queue, "orders"), to("orders", "m"))
	dial(t, Transport{Path: path}, "orders")
	for query, want := range map[string]int{`pragma user_version`: 42, `pragma application_id`: 7, `select count(*) from orders`: 1} {
		if n := count(t, db, query); n != want {
			t.Errorf("%s is %d, want %d", query, n, want)
		}
	}
}

func TestOlderFilesAreBroughtUpToDate(t *testing.T) {
	path := temp(t)
	send(t, dial(t, Transport{Path: path}, queue), to(queue, "m"))
	db := mine(t, path)
	next := append(migrations[:1:1], `alter table holdfast_queues add column paused integer not null default 0`)
	for range 2 { // the second time there is nothing to do
		conn, err := db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := migrate(t.Context(), conn, next); err != nil {
			t.Fatal(err)
		}
		conn.Close()
	}
	if n := count(t, db, `select count(*) from holdfast_messages, holdfast_queues where paused = 0`); n != 1 {
		t.Error("the message is gone")
	}
	if v := count(t, db, `select version from holdfast_schema`); v != 2 {
		t.Errorf("version %d, want 2", v)
	}
	broken := append(next[:2:2], `create table half (x); create table half (x)`)
	conn, err := db.Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := migrate(t.Context(), conn, broken); err == nil || !strings.Contains(err.Error(), "version 3") {
		t.Errorf("a step that fails: %v", err)
	}
	if n := count(t, db, `select count(*) from sqlite_schema where name = 'half'`); n != 0 {
		t.Error("half of a step was left")
	}
}

func TestCloseLeavesOneFileBehind(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	send(t, conn, to(queue, "m"))
	receive(t, receiver(t, conn, queue)) // with the listener
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
	files, err := filepath.Glob(path + "*")
	if err != nil || len(files) != 1 {
		t.Errorf("there are %v (%v): a connection is still open", files, err)
	}
}

func TestSeveralMayOpenANewFileAtOnce(t *testing.T) {
	path := temp(t)
	var opening sync.WaitGroup
	for range 16 {
		opening.Go(func() {
			conn, err := (&Transport{Path: path}).Open(t.Context(), transport.Env{})
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			plan := transport.Plan{Queues: []transport.Queue{{Name: queue}, {Name: "error", Shared: true}}}
			if err := conn.(transport.Installer).Install(t.Context(), plan); err != nil {
				t.Error(err)
			}
		})
	}
	opening.Wait()
	if n := len(inspectAll(t, dial(t, Transport{Path: path}))); n != 2 {
		t.Errorf("%d queues, want 2", n)
	}
}

func TestSendsWaitForTheDiskAndClaimsDoNot(t *testing.T) {
	const normal, full = 1, 2
	for _, c := range []struct{ relaxed, want bool }{{false, true}, {true, false}} {
		s, err := open(t.Context(), temp(t), c.relaxed)
		if err != nil {
			t.Fatal(err)
		}
		conn := tablequeue.Open(s.parts(), tablequeue.Config{})
		defer conn.Close()
		install(t, conn, queue)
		expect := func(what string, waits bool) {
			t.Helper()
			want := map[bool]int{true: full, false: normal}[waits]
			var got int
			if err := s.writer.conn.QueryRowContext(t.Context(), `pragma synchronous`).Scan(&got); err != nil || got != want {
				t.Errorf("relaxed %v: after %s synchronous is %d (%v), want %d", c.relaxed, what, got, err, want)
			}
		}
		send(t, conn, to(queue, "m"))
		expect("a send", c.want)
		d := receive(t, receiver(t, conn, queue))
		expect("a claim", false)
		tx := begin(t, d)
		onCommit(t, tx, func(context.Context, *sql.Tx) error { return nil })
		if err := tx.Complete(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		expect("a completion", c.want)
	}
}

func TestAFullDiskIsSaidAndRecoveredFrom(t *testing.T) {
	s, err := open(t.Context(), temp(t), false)
	if err != nil {
		t.Fatal(err)
	}
	conn := tablequeue.Open(s.parts(), tablequeue.Config{})
	defer conn.Close()
	install(t, conn, queue)
	limit := func(pages int) {
		t.Helper()
		_, err := s.writer.conn.ExecContext(t.Context(), fmt.Sprintf("pragma max_page_count=%d", pages))
		if err != nil {
			t.Fatal(err)
		}
	}
	limit(1) // not less than there are
	op := to(queue, "m")
	op.Message.Body = make([]byte, 100_000)
	if _, err := conn.Dispatch(t.Context(), []transport.Operation{op}); !errors.Is(err, transport.ErrUnreachable) || !strings.Contains(err.Error(), "disk is full") {
		t.Fatalf("error %v", err)
	}
	limit(1_000_000)
	send(t, conn, op)
	receive(t, receiver(t, conn, queue))
}

func TestAFileThatIsLockedForLongIsSaid(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	send(t, conn, to(queue, "m"))
	d := receive(t, receiver(t, conn, queue))
	lock, err := mine(t, path).BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	tx := begin(t, d)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = tx.Complete(ctx, nil)
	if !errors.Is(err, context.DeadlineExceeded) || !errors.Is(err, transport.ErrUnreachable) || !strings.Contains(err.Error(), "locked by another transaction") {
		t.Errorf("error %v", err)
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := d.Complete(t.Context()); err != nil {
		t.Error("afterwards:", err)
	}
}

func TestAWaitForTheLockIsNotAnError(t *testing.T) {
	path := temp(t)
	conn := dial(t, Transport{Path: path}, queue)
	db := mine(t, path)
	lock, err := db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	sent := make(chan error)
	go func() {
		_, err := conn.Dispatch(t.Context(), []transport.Operation{to(queue, "m")})
		sent <- err
	}()
	select {
	case err := <-sent:
		t.Fatal("it did not wait:", err)
	case <-time.After(100 * time.Millisecond):
	}
	if err := lock.Rollback(); err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

func TestOddQueueNamesAreRefused(t *testing.T) {
	conn := dial(t, Transport{Path: temp(t)}, strings.Repeat("q", 255))
	for _, name := range []string{"", strings.Repeat("q", 256), "\xff"} {
		err := conn.(transport.Installer).Install(t.Context(), transport.Plan{Queues: []transport.Queue{{Name: name}}})
		if err == nil {
			t.Errorf("queue %q was made", name)
		}
	}
}
