package dialect

import (
	"errors"
	"fmt"
	"iter"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Options are the fields of a transport that options of its URL set, by the option's name: pointers to strings, bools,
// ints and durations.
type Options map[string]any

// ParseURL sets the fields that raw, a URL with one of schemes, has options for. It returns the URL without them. Its
// errors do not repeat the URL, which may hold a password.
func (o Options) ParseURL(raw string, schemes ...string) (rest string, err error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil:
		return "", errors.New("not a valid URL (special characters in user and password are to be percent-encoded)")
	case !slices.Contains(schemes, strings.ToLower(u.Scheme)):
		return "", fmt.Errorf("unknown scheme %q: want %s://", u.Scheme, schemes[0])
	case u.Host == "":
		return "", errors.New("no host")
	}
	query := u.Query()
	if err := o.Take(query); err != nil {
		return "", err
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

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

// Check returns an error where names has an option that is none of others, which the URL may have beside o. The error
// names all of them, and hint.
func (o Options) Check(names iter.Seq[string], others []string, hint ...string) error {
	for _, name := range slices.Sorted(names) {
		if !slices.Contains(others, strings.ToLower(name)) {
			known := slices.Sorted(slices.Values(slices.Concat(slices.Collect(maps.Keys(o)), others, hint)))
			return fmt.Errorf("unknown option %q: want one of %s", name, strings.Join(known, ", "))
		}
	}
	return nil
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
