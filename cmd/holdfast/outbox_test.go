package main

import (
	"bufio"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/holdfast-go/holdfast/header"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/envelope"
	"github.com/holdfast-go/holdfast/internal/handledid"
	"github.com/holdfast-go/holdfast/internal/timer"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/transport"
)

// databases are the URLs of databases that can be an outbox.
var databases = map[string]func(*testing.T) string{
	"sqlite":   func(t *testing.T) string { return "sqlite:" + filepath.Join(t.TempDir(), "billing.db") },
	"postgres": func(t *testing.T) string { return brokertest.Postgres(t) },
}

// withOutbox sets the environment to a broker with the queues shipping and error, and to a database
// with the outbox of the endpoint billing.
func withOutbox(t *testing.T, database string) {
	t.Helper()
	setenv(t, transportVar, "sqlite:"+filepath.Join(t.TempDir(), "broker.db"))
	setenv(t, databaseVar, database)
	must(t, "", "endpoint", "create", "billing", "--outbox", database)
	must(t, "", "queues", "create", "shipping")
}

// connected calls f with a connection to the transport of a URL.
func connected(t *testing.T, url string, f func(transport.Conn)) {
	t.Helper()
	target, err := parseTransport(url)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := target.Open(t.Context(), transport.Env{Remember: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f(conn)
	if err := conn.Close(); err != nil {
		t.Fatal(err)
	}
}

// stored puts rows with these bodies into the outbox, and returns their ids.
func stored(t *testing.T, database string, bodies ...[]byte) (ids []string) {
	t.Helper()
	connected(t, database, func(conn transport.Conn) {
		var ops []transport.Operation
		for _, body := range bodies {
			m := &transport.Message{ID: uuid.New(time.Now()), Body: body}
			ids = append(ids, m.ID)
			ops = append(ops, transport.Operation{Message: m, Queue: "billing.outbox"})
		}
		if _, err := conn.Dispatch(t.Context(), ops); err != nil {
			t.Fatal(err)
		}
	})
	return ids
}

// toShipping is a send to the queue shipping.
func toShipping(id string) transport.Operation { return sendTo("shipping", id) }

func sendTo(queue, id string) transport.Operation {
	m := &transport.Message{ID: id, Body: []byte(`{"order":"4711"}`)}
	m.Headers = header.New(
		header.Field{Name: header.MessageID, Value: id}, header.Field{Name: header.EnclosedMessageTypes, Value: "Shop.ShipOrder"},
	)
	return transport.Operation{Message: m, Queue: queue}
}

func row(ops ...transport.Operation) []byte { return envelope.Encode(ops, time.Now(), 0)[0] }

// depth returns the number of messages in a queue.
func depth(t *testing.T, url, queue string) int64 {
	t.Helper()
	var stats []transport.QueueStats
	if err := json.Unmarshal([]byte(must(t, "", "queues", queue, "--transport", url, "--json")), &stats); err != nil {
		t.Fatal(err)
	}
	return max(0, stats[0].Ready) + max(0, stats[0].Unsettled) + max(0, stats[0].Delayed)
}

func TestRowsOfAnOutboxAreListedShownAndDiscarded(t *testing.T) {
	t.Parallel()
	for name, url := range databases {
		t.Run(name, func(t *testing.T) {
			database := url(t)
			withOutbox(t, database)
			if out := must(t, "", "outbox", "list", "--endpoint", "billing"); out != "no messages in billing.outbox\n" {
				t.Errorf("an empty outbox: %s", out)
			}
			published := sendTo("", "m-3")
			published.Types = []string{"Shop.OrderPlaced", "Shop.Event"}
			delayed := sendTo("billing", "m-2")
			delayed.At = time.Now().Add(time.Hour)
			ids := stored(t, database, row(toShipping("m-1"), delayed), row(published), []byte{2, 1, 200})

			var rows []storedRow
			for line := range strings.Lines(must(t, "", "outbox", "list", "--endpoint", "billing", "--json")) {
				var r storedRow
				if err := json.Unmarshal([]byte(line), &r); err != nil {
					t.Fatal(err)
				}
				rows = append(rows, r)
			}
			if len(rows) != 3 || rows[0].ID != ids[0] || len(rows[0].Messages) != 2 || rows[0].Messages[0].Queue != "shipping" ||
				rows[0].Messages[1].Due.IsZero() || rows[0].StoredAt.IsZero() || rows[1].Messages[0].Types[0] != "Shop.OrderPlaced" ||
				!strings.Contains(rows[2].Unreadable, "another version") {
				t.Errorf("listed %+v", rows)
			}
			out := must(t, "", "outbox", "list", "--endpoint", "billing")
			for _, text := range []string{"shipping, billing", "Shop.ShipOrder", "(subscribers)", "cannot be read", ids[1]} {
				if !strings.Contains(out, text) {
					t.Errorf("no %q in\n%s", text, out)
				}
			}
			if out := must(t, "", "outbox", "list", "--endpoint", "billing", "--first", "1"); strings.Contains(out, ids[1]) {
				t.Errorf("more than the first in\n%s", out)
			}
			shown := must(t, "", "outbox", "show", rows[0].Number, "--endpoint", "billing")
			for _, text := range []string{"m-1  to shipping", "m-2  to billing, due ", "NServiceBus.EnclosedMessageTypes: Shop.ShipOrder", `{"order":"4711"}`} {
				if !strings.Contains(shown, text) {
					t.Errorf("no %q in\n%s", text, shown)
				}
			}
			var all shownRow
			if err := json.Unmarshal([]byte(must(t, "", "outbox", "show", ids[1], "--endpoint", "billing", "--json")), &all); err != nil {
				t.Fatal(err)
			}
			if len(all.Messages) != 1 || string(all.Messages[0].Body) != `{"order":"4711"}` || all.Messages[0].Headers.Get(header.MessageID) != "m-3" {
				t.Errorf("shown %+v", all)
			}
			if out := must(t, "", "outbox", "show", ids[2], "--endpoint", "billing"); !strings.Contains(out, "02 01 c8") {
				t.Errorf("the unreadable row is shown as\n%s", out)
			}
			if code, _, errs := call(t, "", "outbox", "show", "none", "--endpoint", "billing"); code != exitFailed || !strings.Contains(errs, `"none"`) {
				t.Errorf("a missing row: exit code %d, %s", code, errs)
			}

			must(t, "", "outbox", "discard", ids[0], "--endpoint", "billing", "--dry-run")
			if code, out, errs := call(t, "", "outbox", "discard", ids[0], "none", "--endpoint", "billing"); code != exitFailed ||
				!strings.Contains(out, "1 message of billing.outbox discarded, 0 left") || !strings.Contains(errs, "no message with the id none") {
				t.Errorf("discard: exit code %d, %s, %s", code, out, errs)
			}
			if n := depth(t, database, "billing.outbox"); n != 2 {
				t.Errorf("%d rows are left, want 2", n)
			}
			must(t, "", "outbox", "discard", "--all", "--endpoint", "billing")
			if n := depth(t, database, "billing.outbox"); n != 0 {
				t.Errorf("%d rows are left, want none", n)
			}
		})
	}
}

func TestAnOutboxIsDrained(t *testing.T) {
	for name, url := range databases {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			database, broker := url(t), "sqlite:"+filepath.Join(t.TempDir(), "broker.db")
			if name == "postgres" {
				broker = brokertest.RabbitMQ(t)
			}
			on := []string{"--transport", broker, "--endpoint", "billing", "--database", database}
			must(t, "", "endpoint", "create", "billing", "--transport", broker, "--outbox", database)
			must(t, "", "queues", "create", "shipping", "--transport", broker)
			var bodies [][]byte
			for range 250 {
				bodies = append(bodies, row(toShipping(uuid.New(time.Now())), toShipping(uuid.New(time.Now()))))
			}
			unknown := stored(t, database, append(bodies, row(sendTo("deleted", "m-1")), []byte{9})...)[251]

			code, out, errs := call(t, "", append([]string{"outbox", "drain", "--json", "--log-level", "off"}, on...)...)
			var result drained
			if err := json.Unmarshal([]byte(out), &result); err != nil {
				t.Fatalf("%v: %s, %s", err, out, errs)
			}
			if code != exitFailed || result.Sent != 500 || result.Refused != 1 || result.Left != 1 || len(result.Unreadable) != 1 ||
				!strings.Contains(errs, unknown) || !strings.Contains(errs, "the outbox still has rows that cannot be read: 1") {
				t.Errorf("exit code %d, %+v, %s", code, result, errs)
			}
			if n := depth(t, broker, "shipping"); n != 500 {
				t.Errorf("%d arrived, want 500", n)
			}
			if n := depth(t, broker, "error"); n != 1 {
				t.Errorf("%d in the error queue, want 1", n)
			}
			must(t, "", "outbox", "discard", "--all", "--endpoint", "billing", "--database", database)
			if out := must(t, "", append([]string{"outbox", "drain"}, on...)...); out != "0 messages of billing.outbox sent, 0 moved to error, rows left: 0\n" {
				t.Errorf("an empty outbox: %s", out)
			}
		})
	}
}

// A drain waits for a row that another instance is sending, until it is interrupted.
func TestADrainWaitsForRowsThatOthersSend(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	broker, database := "sqlite:"+filepath.Join(dir, "broker.db"), "sqlite:"+filepath.Join(dir, "outbox.db")
	must(t, "", "endpoint", "create", "billing", "--transport", broker, "--outbox", database)
	stored(t, database, row(toShipping("m-1")))
	program := program(t)
	connected(t, database, func(conn transport.Conn) {
		r, err := conn.OpenReceiver(t.Context(), transport.ReceiverOptions{Queue: "billing.outbox"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := r.Receive(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		cmd := exec.CommandContext(t.Context(), program, "outbox", "drain", "--endpoint", "billing", "--transport", broker, "--database", database)
		var out strings.Builder
		cmd.Stdout = &out
		progress, err := cmd.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewReader(progress)
		if line, err := lines.ReadString('\n'); err != nil || !strings.Contains(line, "rows left: 1") {
			t.Errorf("progress %q, %v", line, err)
		}
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			t.Fatal(err)
		}
		rest, err := io.ReadAll(lines)
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Wait(); code(err) != exitInterrupted || !strings.Contains(out.String(), "rows left: 1") {
			t.Errorf("it ended with %v: %s, %s", err, &out, rest)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestHandledMessagesAreForgotten(t *testing.T) {
	t.Parallel()
	for name, url := range databases {
		t.Run(name, func(t *testing.T) {
			database := url(t)
			withOutbox(t, database)
			ids := []string{uuid.New(time.Now()), "m-2", "m-3"}
			connected(t, database, func(conn transport.Conn) {
				for _, id := range ids {
					key := transport.HandledKey{ID: handledid.Of("billing", id), Sum: 7}
					if err := conn.(transport.OutboxStore).Store(t.Context(), transport.OutboxEntry{Inbox: "billing.handled", Key: &key}); err != nil {
						t.Fatal(err)
					}
				}
			})
			var size shownInbox
			if err := json.Unmarshal([]byte(must(t, "", "handled", "show", "--endpoint", "billing", "--remember", "48h", "--json")), &size); err != nil {
				t.Fatal(err)
			}
			if size.Rows != 3 || size.LastHour != 3 || size.ExpectedRows != 3*48 || size.ExpectedBytes != 3*48*125 {
				t.Errorf("size %+v", size)
			}
			if out := must(t, "", "handled", "show", "--endpoint", "billing"); !strings.Contains(out, "504 ids, 63.0 kB, with Remember 168h0m0s") {
				t.Errorf("shown %s", out)
			}
			if out := must(t, "", "handled", "forget", ids[0], ids[1], "--endpoint", "billing"); out != "2 messages forgotten\n" {
				t.Errorf("forgot: %s", out)
			}
			code, out, errs := call(t, "", "handled", "forget", ids[1], ids[2], "--endpoint", "billing")
			if code != exitFailed || out != "1 message forgotten\n" || !strings.Contains(errs, "no message was handled with the id m-2") {
				t.Errorf("exit code %d, %s, %s", code, out, errs)
			}
		})
	}
}

func TestOutboxCommandsSayWhatIsMissing(t *testing.T) {
	setenv(t, databaseVar, "")
	file := "sqlite:" + filepath.Join(t.TempDir(), "q.db")
	for _, c := range []struct {
		text string
		code int
		args []string
	}{
		{"--endpoint is required", exitUsage, []string{"outbox", "list", "--database", file}},
		{"use --database or set HOLDFAST_OUTBOX", exitUsage, []string{"outbox", "list", "--endpoint", "billing"}},
		{"the id of one row", exitUsage, []string{"outbox", "show", "--endpoint", "billing", "--database", file}},
		{"no rows are selected", exitUsage, []string{"outbox", "discard", "--endpoint", "billing", "--database", file}},
		{"leave it out when ids", exitUsage, []string{"outbox", "discard", "1", "--all", "--endpoint", "billing", "--database", file}},
		{"must not be negative", exitUsage, []string{"outbox", "list", "--first", "-1", "--endpoint", "billing", "--database", file}},
		{"no such queue", exitFailed, []string{"outbox", "list", "--endpoint", "billing", "--database", file}},
		{"no such queue", exitFailed, []string{"outbox", "drain", "--endpoint", "billing", "--database", file, "--transport", file}},
		{"requires at least 1 arg", exitUsage, []string{"handled", "forget", "--endpoint", "billing", "--database", file}},
		{"must be positive", exitUsage, []string{"handled", "show", "--remember", "-1h", "--endpoint", "billing", "--database", file}},
		{"no such queue: holdfast endpoint create creates it", exitFailed, []string{"handled", "show", "--endpoint", "billing", "--database", file}},
	} {
		code, _, errs := call(t, "", slices.Concat(c.args, []string{"--log-level", "off"})...)
		if code != c.code || !strings.Contains(errs, c.text) {
			t.Errorf("%q: exit code %d, %s, want %d and %q", c.args, code, errs, c.code, c.text)
		}
	}
}

func TestTheNameOfATimerIsShown(t *testing.T) {
	database := databases["sqlite"](t)
	withOutbox(t, database)
	due := time.Now().Add(48 * time.Hour)
	full := timer.Name{Kind: "shipping@billing", Key: "17", Name: "pay\x00ment"}
	op := transport.Operation{Message: &transport.Message{ID: "late"}, Queue: "shipping", At: due}
	connected(t, database, func(c transport.Conn) {
		row := transport.Operation{
			Queue: "billing.outbox", Name: full.Text(), At: due,
			Message: &transport.Message{
				ID: uuid.New(due), Body: envelope.Encode([]transport.Operation{op}, due, 0)[0],
				Headers: header.New(header.Field{Name: header.HoldfastTimer, Value: full.Text()}),
			},
		}
		if _, err := c.Dispatch(t.Context(), []transport.Operation{row}); err != nil {
			t.Fatal(err)
		}
	})
	out := must(t, "", "outbox", "list", "--endpoint", "billing")
	if !strings.Contains(out, `of shipping@billing "17", due `+due.UTC().Format("2006-01-02 15:04:05")) {
		t.Errorf("the list is\n%s", out)
	}
	var row storedRow
	if err := json.Unmarshal([]byte(must(t, "", "outbox", "list", "--endpoint", "billing", "--json")), &row); err != nil {
		t.Fatal(err)
	}
	if row.Timer != full.String() {
		t.Errorf("the timer is %q", row.Timer)
	}
	if out := must(t, "", "outbox", "show", row.ID, "--endpoint", "billing"); !strings.Contains(out, "timer pay") {
		t.Errorf("the row is shown as\n%s", out)
	}
}
