package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/holdfast-go/holdfast/internal/stateful"
	"github.com/holdfast-go/holdfast/internal/uuid"
	"github.com/holdfast-go/holdfast/saga"
	"github.com/holdfast-go/holdfast/transport"
)

const sagasHelp = `List, show and delete the instances of the sagas of an endpoint. They are in the database of the endpoint's outbox or, in
the transaction mode SendsAtomicWithReceive, in that of its queues.

A saga has the name that the program gave it. An instance is named by its key or by its id. The messages that it sends have
the id in the header NServiceBus.OriginatingSagaId, and its time-outs and the replies to it in NServiceBus.SagaId.

Exit codes: 0 done, 1 failed or no such instance, 2 wrong usage, 130 interrupted.`

func (a *app) sagasCommand() *cobra.Command {
	return a.group(&cobra.Command{
		Use:   "sagas",
		Short: "List, show and delete the instances of an endpoint's sagas",
		Long:  sagasHelp,
		Example: `  holdfast sagas list orders --endpoint billing --database postgres://host/billing
  holdfast sagas show orders 4711 --endpoint billing
  holdfast sagas delete orders 4711 --endpoint billing --yes`,
	}, a.sagasListCommand(), a.sagasShowCommand(), a.sagasDeleteCommand())
}

// sagaOf is a saga of an endpoint.
type sagaOf struct {
	ofEndpoint
	name string
}

func (s *sagaOf) kind() string { return stateful.KindOf(s.endpoint, s.name) }

// onSaga calls f with the database of a saga.
func (a *app) onSaga(ctx context.Context, s *sagaOf, f func(transport.StateInspector) error) error {
	if s.name == "" || !utf8.ValidString(s.name) || strings.Contains(s.name, "@") {
		return usagef("%q is no name of a saga: write the name that the program gives it, without @", s.name)
	}
	t, err := s.database(a)
	if err != nil {
		return err
	}
	return withTarget(ctx, a, t, programName, "store the state of sagas", func(db transport.StateInspector) error {
		err := f(db)
		switch {
		case errors.Is(err, transport.ErrNoQueue):
			err = fmt.Errorf("%w: the endpoint creates the table of states when it installs itself (Config.Install or "+
				"Endpoint.Install); check that the database is that of the endpoint", err)
		case errors.Is(err, transport.ErrConflict):
			err = fmt.Errorf("%w: a message of the instance is being handled: try again", err)
		}
		if err != nil {
			return fmt.Errorf("saga %q of endpoint %q: %w", s.name, s.endpoint, err)
		}
		return nil
	})
}

// onInstance calls f with the instance that the arguments SAGA and KEY name.
func (a *app) onInstance(
	ctx context.Context, s *sagaOf, args []string, f func(transport.StateInspector, transport.Record) error,
) error {
	key := args[1]
	if err := checkKey(key); err != nil {
		return err
	}
	s.name = args[0]
	return a.onSaga(ctx, s, func(db transport.StateInspector) error {
		r, err := s.instance(ctx, db, key)
		if err != nil {
			return err
		}
		return f(db, r)
	})
}

// instance returns the instance with a key, or else that with an id. An error says what is known of
// the saga.
func (s *sagaOf) instance(ctx context.Context, db transport.StateInspector, key string) (transport.Record, error) {
	r, err := db.Record(ctx, saga.ID(s.endpoint, s.name, key))
	if !errors.Is(err, transport.ErrNoRecord) {
		return r, err
	}
	if id, ok := recordID(key); ok {
		r, err := db.Record(ctx, id)
		switch {
		case err == nil && r.Name.Kind == s.kind():
			return r, nil
		case err == nil:
			return r, fmt.Errorf("the id %s is that of %s, in another saga: %s", key, keyText(r.Name.Key), keyText(r.Name.Kind))
		case !errors.Is(err, transport.ErrNoRecord):
			return r, err
		}
	}
	stats, err := db.InspectRecords(ctx, s.kind())
	switch {
	case err != nil:
		return r, err
	case stats.Active+stats.Ended == 0:
		return r, errors.New("it has no instances at all: check the names of the saga and the endpoint, and the database")
	}
	return r, fmt.Errorf("no instance has the key or id %q: it ended longer ago than Config.Remember, or never began", key)
}

// recordID returns the id that a text is.
func recordID(text string) (id transport.RecordID, ok bool) {
	const digits = 2 * len(id)
	hexes := strings.ReplaceAll(text, "-", "")
	if len(hexes) != digits {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(hexes))
	return id, err == nil && uuid.Text(id) == strings.ToLower(text)
}

// checkKey returns an error for a text that is no key.
func checkKey(key string) error {
	const longest = 500
	switch {
	case key == "":
		return usagef("the key is empty")
	case len(key) > longest:
		return usagef("the key has %d bytes: at most %d are possible", len(key), longest)
	case !utf8.ValidString(key):
		return usagef("the key %q is not valid UTF-8", key)
	}
	return nil
}

// shownInstance is an instance of a saga.
type shownInstance struct {
	ID      string    `json:"id"` // as in the header of messages of the instance
	Key     string    `json:"key"`
	Status  string    `json:"status"`  // active or ended
	Changes int64     `json:"changes"` // the number of transactions that have saved it
	Version int       `json:"version"` // of the state, which Saga.Upgrade counts
	Started time.Time `json:"started"`
	Changed time.Time `json:"changed"`
	Bytes   int       `json:"bytes"` // of the state
	// Timeouts is the number of time-outs that wait.
	Timeouts int `json:"timeouts"`
}

// storedMeta is the part of a record that package saga stores beside the state.
type storedMeta struct {
	Version  int               `json:"version"`
	Timeouts map[string]string `json:"timeouts"`
}

// instanceOf returns what a record says. Its meta is read as far as it can be.
func instanceOf(r transport.Record) (shownInstance, storedMeta, error) {
	var meta storedMeta
	var err error
	if len(r.Meta) > 0 {
		err = json.Unmarshal(r.Meta, &meta)
	}
	status := "active"
	if r.Status == transport.RecordEnded {
		status = "ended"
	}
	return shownInstance{
		ID: uuid.Text(r.ID), Key: r.Name.Key, Status: status, Changes: r.Version, Version: meta.Version,
		Started: r.Started, Changed: r.Changed, Bytes: len(r.State), Timeouts: len(meta.Timeouts),
	}, meta, err
}

// keyText returns a key for a terminal: quoted where it has characters that would be lost.
func keyText(key string) string {
	if printable(key) != key || strings.Join(strings.Fields(key), " ") != key {
		return fmt.Sprintf("%q", key)
	}
	return key
}
