package dialect

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// ParseURL parses the URL of a server with one of schemes. Its errors do not repeat the URL, which may hold a password.
func ParseURL(raw string, schemes ...string) (*url.URL, error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return nil, errors.New("not a valid URL (special characters in user and password are to be percent-encoded)")
	case !slices.Contains(schemes, strings.ToLower(u.Scheme)):
		return nil, fmt.Errorf("unknown scheme %q: want %s://", u.Scheme, schemes[0])
	case u.Host == "":
		return nil, errors.New("no host")
	}
	return u, nil
}

// Options are the fields of a transport that options of its URL set, by the option's name: pointers to strings, bools,
// ints and durations.
type Options map[string]any

// Take sets the fields that query has options for, and removes these options from query.
func (o Options) Take(query url.Values) error {
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !query.Has(name) {
			continue
		}
		if err := set(o[name], query.Get(name)); err != nil {
			return fmt.Errorf("option %q: %w", name, err)
		}
		query.Del(name)
	}
	return nil
}

// Unknown is the error of an option that is not one of o, nor of others.
func (o Options) Unknown(name string, others ...string) error {
	known := slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(o)), others...)))
	return fmt.Errorf("unknown option %q: want one of %s", name, strings.Join(known, ", "))
}

func set(field any, value string) (err error) {
	switch field := field.(type) {
	case *string:
		*field = value
	case *bool:
		if *field, err = strconv.ParseBool(value); err != nil {
			return errors.New("want true or false")
		}
	case *int:
		if *field, err = strconv.Atoi(value); err != nil {
			return errors.New("want a number")
		}
	case *time.Duration:
		if *field, err = time.ParseDuration(value); err != nil {
			return errors.New("want a duration such as 30s")
		}
	}
	return nil
}
