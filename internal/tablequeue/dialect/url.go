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

// Options are the fields of a transport that options of its URL set, by the option's name: pointers
// to strings, bools, ints and durations.
type Options map[string]any

var (
	errURL   = errors.New("not a valid URL (special characters in user and password are to be percent-encoded)")
	errQuery = errors.New("not a valid URL: the options after ? cannot be parsed (percent-encode special characters)")
)

// ParseURL sets the fields that raw, a URL with one of schemes, has options for. It returns the URL
// without them. Its errors do not repeat the URL, which may hold a password. The rest of a password
// after a /, ? or # is in the path, the options or the fragment.
func (o Options) ParseURL(raw string, schemes ...string) (rest string, err error) {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Fragment != "" || strings.Contains(u.EscapedPath(), "@"):
		return "", errURL
	case !slices.Contains(schemes, strings.ToLower(u.Scheme)):
		return "", fmt.Errorf("unknown scheme %q: want %s://", u.Scheme, schemes[0])
	case u.Host == "":
		return "", errors.New("no host")
	}
	query, err := o.Take(u.RawQuery)
	if err != nil {
		return "", err
	}
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// Take sets the fields that a query has options for, and returns the other options.
func (o Options) Take(rawQuery string) (url.Values, error) {
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return nil, errQuery
	}
	for _, name := range slices.Sorted(maps.Keys(query)) {
		switch n := len(query[name]); {
		case strings.Contains(name, "@"):
			return nil, errURL
		case n > 1:
			return nil, fmt.Errorf("option %q is set %d times", name, n)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(o)) {
		if !query.Has(name) {
			continue
		}
		if err := set(o[name], query.Get(name)); err != nil {
			return nil, fmt.Errorf("option %q: %w", name, err)
		}
		query.Del(name)
	}
	return query, nil
}

// Check returns an error where names has an option that is none of others, which the URL may have
// beside o. The error names all of them, and hint.
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
