package acceptance_test

import (
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/endpoint"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport/inmemory"
	"github.com/holdfast-go/holdfast/transport/sqlite"
)

// A saga on a database that stores no records is refused at the start, not at its first message.
func TestASagaIsRefusedWhereNoRecordsAreStored(t *testing.T) {
	placed := func(context.Context, *saga.Context[struct{}], work) error { return nil }
	works := saga.New("works", saga.Start(func(work) string { return "1" }, placed))
	db := &sqlite.Transport{Path: filepath.Join(t.TempDir(), "shop.db")}
	e, err := endpoint.New(endpoint.Config{
		Name: "sales", Install: true, Transport: &inmemory.Transport{}, Outbox: db,
		Messages: []endpoint.Message{endpoint.Command[work]("Shop.Work")}, Handlers: works.Handlers(),
	})
	must(t, err)
	if err := e.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "stores no records") {
		t.Errorf("the error is %v", err)
	}
}
