package brokertest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	amqp "github.com/rabbitmq/amqp091-go"
)

// made returns a name that unique made some time ago.
func made(ago time.Duration) string {
	name := unique()
	return fmt.Sprintf("holdfast-%d%s", time.Now().Add(-ago).Unix(), name[len(name)-11:])
}

func TestOnlyThingsOfOldTestsAreSwept(t *testing.T) {
	for name, want := range map[string]bool{
		made(leftAfter + time.Minute):            true,
		made(leftAfter - time.Minute):            false,
		made(0):                                  false,
		unique():                                 false,
		made(2*leftAfter) + "-orders":            false,
		"my-" + made(2*leftAfter):                false,
		"holdfast":                               false,
		"holdfast-4711-abcdefghij":               false,
		"holdfast-99999999999999999999-abcdefgh": false,
	} {
		if got := leftBehind(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestDatabasesOfKilledTestsAreDropped(t *testing.T) {
	node := own(t, ownPostgres)
	server := node.server.url("postgres")
	old, young := made(2*leftAfter), made(time.Hour)
	for _, name := range []string{old, young} {
		if err := execute(server, "CREATE DATABASE "+pgx.Identifier{name}.Sanitize()); err != nil {
			t.Fatal(err)
		}
	}
	sweepPostgres(server)
	c, err := pgx.Connect(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(t.Context())
	rows, err := c.Query(t.Context(), "SELECT datname FROM pg_database")
	if err != nil {
		t.Fatal(err)
	}
	left, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	if slices.Contains(left, old) || !slices.Contains(left, young) {
		t.Errorf("left are %s, want %s without %s", left, young, old)
	}
}

// The start of a node takes many seconds.
func TestChaosVirtualHostsOfKilledTests(t *testing.T) {
	Fault(t)
	node := RabbitMQNode{own(t, ownRabbitMQ)}
	old, young := made(2*leftAfter), made(time.Hour)
	for _, name := range []string{old, young} {
		node.Control("add_vhost", name)
		node.Control("set_permissions", "-p", name, "guest", ".*", ".*", ".*")
	}
	node.addVhost()
	if opens(node.server.url(old)) || !opens(node.server.url(young)) {
		t.Error("want the young one and not the old one")
	}
}

func opens(server string) bool {
	c, err := amqp.Dial(server)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}
