//go:build unix

package brokertest_test

import (
	"bufio"
	"context"
	"net"
	"net/url"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/holdfast-go/holdfast/internal/brokertest"
)

func TestOwnPostgresKeepsCommittedRowsOverRestarts(t *testing.T) {
	node := brokertest.OwnPostgres(t)
	execute(t, node.URL, "CREATE TABLE orders (id int)")
	for i, how := range []os.Signal{os.Interrupt, syscall.SIGQUIT, os.Kill} {
		execute(t, node.URL, "INSERT INTO orders VALUES (1)")
		node.Stop(how)
		if listens(t, node.URL) {
			t.Errorf("%v: the broker still listens", how)
		}
		node.Start()
		if n := execute(t, node.URL, "SELECT * FROM orders"); n != int64(i+1) {
			t.Errorf("%v: %d rows, want %d", how, n, i+1)
		}
	}
}

// Each start of a node takes many seconds.
func TestChaosOwnRabbitMQKeepsMessages(t *testing.T) {
	brokertest.Fault(t)
	node := brokertest.OwnRabbitMQ(t)
	for i, restart := range []func(){
		node.Kill,
		node.RestartApp,
	} {
		if n := fill(t, node.URL, "orders", i); n != i {
			t.Errorf("the queue has %d messages, want %d", n, i)
		}
		restart()
	}
	node.Stop(syscall.SIGTERM)
	if listens(t, node.URL) {
		t.Error("the broker still listens")
	}
}

func execute(t *testing.T, server, statement string) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	tag, err := c.Exec(ctx, statement)
	if err != nil {
		t.Fatal(err)
	}
	return tag.RowsAffected()
}

func listens(t *testing.T, server string) bool {
	t.Helper()
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp", u.Host)
	if err == nil {
		_ = c.Close()
	}
	return err == nil
}

const orphanVariable = "HOLDFAST_TEST_ORPHAN"

// A killed test process leaves no running server.
func TestNodesEndWithTheProcessThatStartedThem(t *testing.T) {
	if os.Getenv(orphanVariable) != "" {
		os.Stderr.WriteString(brokertest.OwnPostgres(t).URL + "\n")
		select {} // until it is killed
	}
	if testing.Short() {
		t.Skip("needs PostgreSQL, and -short is for machines without")
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestNodesEndWithTheProcessThatStartedThem$")
	cmd.Env = append(os.Environ(), orphanVariable+"=1")
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	server, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	server = server[:len(server)-1]
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := pgx.Connect(ctx, server)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close(ctx)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	// The server's end ends the connection to it.
	if n, err := c.WaitForNotification(ctx); err == nil || ctx.Err() != nil {
		t.Errorf("the server lives on: %v, %v", n, err)
	}
	if listens(t, server) {
		t.Error("the broker still listens")
	}
}
