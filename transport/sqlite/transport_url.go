package sqlite

import (
	"errors"
	"maps"
	"strings"

	"github.com/holdfast-go/holdfast/internal/tablequeue/dialect"
)

// ParseURL returns the transport of a URL: sqlite:orders.db is a file in the working directory, and
// sqlite:///var/lib/orders.db an absolute path. The options lease and relaxed set the fields of
// those names; an unknown one is an error that names it.
func ParseURL(raw string) (_ *Transport, err error) {
	defer func() { err = failed(err, "parse the URL") }()
	scheme, rest, _ := strings.Cut(raw, ":")
	if !strings.EqualFold(scheme, "sqlite") {
		return nil, errors.New("unknown scheme: want sqlite:orders.db")
	}
	path, options, _ := strings.Cut(rest, "?")
	path = strings.TrimPrefix(path, "//") // sqlite:///absolute and sqlite://relative are common too
	if path == "" {
		return nil, errors.New("no file, as in sqlite:orders.db")
	}
	t := &Transport{Path: path}
	own := dialect.Options{"lease": &t.Lease, "relaxed": &t.Relaxed}
	query, err := own.Take(options)
	if err != nil {
		return nil, err
	}
	if err := own.Check(maps.Keys(query), nil); err != nil {
		return nil, err
	}
	return t, nil
}
