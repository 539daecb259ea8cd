package main

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/internal/brokertest"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
)

type (
	placeOrder  struct{ Key string }
	orderPaid   struct{ Key string }
	paymentLate struct{}
	lastOne     struct{}
	order       struct{ Customer string }
)

const oddKey = "odd\tkey \u202e"

// withSagas sets the environment to a database in which the saga orders of the endpoint billing has
// the active instances 4711, 4712 and oddKey, each with a time-out that waits, and the ended
// instance 4713.
func withSagas(t *testing.T, database string) {
	t.Helper()
	setenv(t, databaseVar, database)
	target, err := parseTransport(database)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	orders := saga.New[order]("orders",
		saga.Start(func(m placeOrder) string { return m.Key }, func(ctx context.Context, c *saga.Context[order], m placeOrder) error {
			c.State.Customer = "Ada"
			return c.SetTimeout(ctx, "payment", paymentLate{}, endpoint.After(72*time.Hour))
		}),
		saga.On(func(m orderPaid) string { return m.Key }, func(_ context.Context, c *saga.Context[order], _ orderPaid) error {
			c.Complete()
			return nil
		}),
		saga.OnTimeout(func(context.Context, *saga.Context[order], paymentLate) error { return nil }))
	billing, err := endpoint.New(endpoint.Config{
		Name: "billing", Transport: target.Transport, Install: true, Logger: slog.New(slog.DiscardHandler),
		Transactions: endpoint.SendsAtomicWithReceive,
		Concurrency:  1, // the last one is the last
		Messages: []endpoint.Message{
			endpoint.Command[placeOrder]("Shop.PlaceOrder"), endpoint.Command[orderPaid]("Shop.OrderPaid"),
			endpoint.Command[paymentLate]("Shop.PaymentLate"), endpoint.Command[lastOne]("Shop.LastOne"),
		},
		Handlers: append(orders.Handlers(), endpoint.Handle(func(context.Context, *endpoint.Session, lastOne) error {
			stop()
			return nil
		})),
	})
	if err != nil {
		t.Fatal(err)
	}
	ran := make(chan error, 1)
	go func() { ran <- billing.Run(ctx) }()
	if err := billing.WaitReady(ctx); err != nil {
		t.Fatal(errors.Join(err, <-ran))
	}
	for _, m := range []any{
		placeOrder{"4711"}, placeOrder{"4712"}, placeOrder{"4713"}, placeOrder{oddKey}, orderPaid{"4713"}, lastOne{},
	} {
		if err := billing.SendLocal(ctx, m); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ran; err != nil {
		t.Fatal(err)
	}
}

// inBilling adds the flag of the endpoint to a command of sagas.
func inBilling(args ...string) []string {
	return append(append([]string{"sagas"}, args...), "--endpoint", "billing")
}

func TestInstancesAreListedShownAndDeleted(t *testing.T) {
	t.Parallel()
	testSagas(t, databases["sqlite"](t))
}

func TestChaosSagasOnPostgreSQL(t *testing.T) {
	t.Parallel()
	brokertest.Fault(t)
	testSagas(t, databases["postgres"](t))
}

func testSagas(t *testing.T, database string) {
	t.Helper()
	withSagas(t, database)

	out := must(t, "", inBilling("list", "orders")...)
	for _, text := range []string{"STATUS", "4711", "4712", `"odd\tkey \u202e"`, "ended", "3 active, 1 ended"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	if strings.Contains(out, "there may be more") {
		t.Errorf("more than all: %s", out)
	}

	// Pages of one instance have each instance once.
	listed := map[string]shownInstance{}
	after := []string{}
	for {
		text := must(t, "", inBilling(append([]string{"list", "orders", "--first", "1", "--json"}, after...)...)...)
		if text == "" {
			break
		}
		var i shownInstance
		if err := json.Unmarshal([]byte(text), &i); err != nil {
			t.Fatal(err)
		}
		if _, ok := listed[i.Key]; ok {
			t.Fatalf("%q is listed twice", i.Key)
		}
		listed[i.Key] = i
		after = []string{"--after", i.Key}
	}
	if len(listed) != 4 {
		t.Errorf("%d instances in pages, want 4: %v", len(listed), listed)
	}
	if i := listed["4711"]; i.Status != "active" || i.Timeouts != 1 || i.Version != 1 || i.Changes != 1 || i.Bytes == 0 ||
		i.Started.IsZero() || i.Changed.IsZero() {
		t.Errorf("4711 is %+v", i)
	}
	if i := listed["4713"]; i.Status != "ended" || i.Timeouts != 0 || i.Changes != 2 || i.Bytes != 0 {
		t.Errorf("4713 is %+v", i)
	}
	if out := must(t, "", inBilling("list", "orders", "--first", "1")...); !strings.Contains(out, `there may be more: list them with --after "4711"`) {
		t.Errorf("the first page:\n%s", out)
	}

	out = must(t, "", inBilling("show", "orders", "4711")...)
	for _, text := range []string{listed["4711"].ID, "active", `{"Customer":"Ada"}`, "payment", "version of the state 1"} {
		if !strings.Contains(out, text) {
			t.Errorf("no %q in\n%s", text, out)
		}
	}
	var shown struct {
		shownInstance
		Waiting []string
		State   order
	}
	if err := json.Unmarshal([]byte(must(t, "", inBilling("show", "orders", oddKey, "--json")...)), &shown); err != nil {
		t.Fatal(err)
	}
	if shown.Key != oddKey || shown.State.Customer != "Ada" || len(shown.Waiting) != 1 || shown.Waiting[0] != "payment" {
		t.Errorf("shown %+v", shown)
	}
	if out := must(t, "", inBilling("show", "orders", "4713")...); !strings.Contains(out, "ended") || strings.Contains(out, "\nstate,") {
		t.Errorf("an ended instance:\n%s", out)
	}

	byID := must(t, "", inBilling("show", "orders", listed["4712"].ID)...)
	if byKey := must(t, "", inBilling("show", "orders", "4712")...); byID != byKey {
		t.Errorf("by id\n%s\nby key\n%s", byID, byKey)
	}
	code, _, errs := call(t, "", inBilling("show", "order", listed["4712"].ID)...)
	if code != exitFailed || !strings.Contains(errs, "in another saga: orders@billing") {
		t.Errorf("the id in another saga: exit code %d, %s", code, errs)
	}

	code, out, errs = call(t, "", inBilling("delete", "orders", "4711")...)
	if code != exitUsage || !strings.Contains(errs, "confirm with --yes") || !strings.Contains(out, "time-outs that wait: 1") {
		t.Errorf("not confirmed: exit code %d, %s%s", code, out, errs)
	}
	must(t, "", inBilling("show", "orders", "4711")...)
	if out := must(t, "", inBilling("delete", "orders", "4711", "--yes")...); !strings.Contains(out, "4711 deleted") ||
		!strings.Contains(out, "ignored when they are due") {
		t.Errorf("deleted: %s", out)
	}
	for _, args := range [][]string{{"show", "orders", "4711"}, {"delete", "orders", "4711", "--yes"}} {
		if code, _, errs := call(t, "", inBilling(args...)...); code != exitFailed || !strings.Contains(errs, `no instance has the key or id "4711"`) {
			t.Errorf("%q: exit code %d, %s", args, code, errs)
		}
	}
	if out := must(t, "", inBilling("list", "orders")...); !strings.Contains(out, "2 active, 1 ended") {
		t.Errorf("after the deletion:\n%s", out)
	}
}

func TestBadUseOfSagasIsAnError(t *testing.T) {
	missing := brokertest.Postgres(t)
	sqlite := "sqlite:" + filepath.Join(t.TempDir(), "billing.db")
	setenv(t, databaseVar, missing)
	long := strings.Repeat("k", 501)
	for _, c := range []struct {
		name string
		args []string
		code int
		text string
	}{
		{"no endpoint", []string{"sagas", "list", "orders"}, exitUsage, "--endpoint is required"},
		{"no saga", inBilling("list"), exitUsage, "accepts 1 arg"},
		{"empty saga", inBilling("list", ""), exitUsage, "no name of a saga"},
		{"a kind for a saga", inBilling("list", "orders@billing"), exitUsage, "without @"},
		{"no key", inBilling("show", "orders"), exitUsage, "accepts 2 arg"},
		{"empty key", inBilling("show", "orders", ""), exitUsage, "the key is empty"},
		{"long key", inBilling("delete", "orders", long), exitUsage, "the key has 501 bytes"},
		{"broken key", inBilling("show", "orders", "\xff"), exitUsage, "not valid UTF-8"},
		{"broken key to list from", inBilling("list", "orders", "--after", "\xff"), exitUsage, "not valid UTF-8"},
		{"no instances at once", inBilling("list", "orders", "--first", "0"), exitUsage, "must be positive"},
		{"table is missing", inBilling("list", "orders"), exitFailed, "creates the table of states"},
		{"table is missing, show", inBilling("show", "orders", "1"), exitFailed, "creates the table of states"},
		{"table is missing, delete", inBilling("delete", "orders", "1", "--yes"), exitFailed, "creates the table of states"},
		{"a broker", inBilling("list", "orders", "--database", "amqp://host"), exitUsage, "no database"},
		{"table is missing in a file", inBilling("list", "orders", "--database", sqlite), exitFailed, "creates the table of states"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, out, errs := call(t, "", c.args...)
			if code != c.code || !strings.Contains(errs, c.text) {
				t.Errorf("exit code %d, want %d; %q is not in %s%s", code, c.code, c.text, out, errs)
			}
		})
	}
}

func TestUnknownSagaIsNamed(t *testing.T) {
	withSagas(t, databases["sqlite"](t))
	if out := must(t, "", inBilling("list", "order")...); !strings.Contains(out, "no instances of saga order in endpoint billing") {
		t.Errorf("listed: %s", out)
	}
	code, _, errs := call(t, "", inBilling("show", "order", "4711")...)
	if code != exitFailed || !strings.Contains(errs, "no instances at all") {
		t.Errorf("exit code %d, %s", code, errs)
	}
}

func TestInstancesNeedTheRightToTheirTable(t *testing.T) {
	t.Parallel()
	database := brokertest.Postgres(t)
	withSagas(t, database)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	user := "sagas_" + strings.ReplaceAll(uuid.New(time.Now()), "-", "")
	execute := func(statement string) {
		t.Helper()
		if _, err := conn.Exec(context.WithoutCancel(t.Context()), statement); err != nil {
			t.Error(err)
		}
	}
	execute(`CREATE ROLE ` + user + ` LOGIN PASSWORD 'secret'`)
	t.Cleanup(func() {
		execute(`DROP ROLE ` + user)
		if err := conn.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	restricted, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	restricted.User = url.UserPassword(user, "secret")
	setenv(t, databaseVar, restricted.String())
	for _, args := range [][]string{{"list", "orders"}, {"show", "orders", "4711"}, {"delete", "orders", "4711", "--yes"}} {
		code, out, errs := call(t, "", inBilling(args...)...)
		if code != exitFailed || !strings.Contains(errs, "permission denied") || strings.Contains(errs, "secret") {
			t.Errorf("%q: exit code %d, %s%s", args, code, out, errs)
		}
	}
}

// An instance of which a message is being handled is not deleted.
func TestInstanceInUseIsNotDeleted(t *testing.T) {
	t.Parallel()
	database := brokertest.Postgres(t)
	withSagas(t, database)
	contains(t, must(t, "", inBilling("list", "orders")...), "3 active, 1 ended")
	contains(t, must(t, "", inBilling("show", "orders", "4711")...), `{"Customer":"Ada"}`)
	conn, err := pgx.Connect(t.Context(), database)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := conn.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	}()
	tx, err := conn.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	id := saga.ID("billing", "orders", "4711")
	locked, err := tx.Exec(t.Context(), `SELECT FROM holdfast_state WHERE id = $1::uuid FOR UPDATE`, uuid.Text(id))
	if err != nil || locked.RowsAffected() != 1 {
		t.Fatalf("%d rows are locked: %v", locked.RowsAffected(), err)
	}
	code, _, errs := call(t, "", inBilling("delete", "orders", "4711", "--yes")...)
	if code != exitFailed || !strings.Contains(errs, "a message of the instance is being handled: try again") {
		t.Errorf("exit code %d, %s", code, errs)
	}
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	must(t, "", inBilling("delete", "orders", "4711", "--yes")...)
}
