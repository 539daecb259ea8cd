package asb

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

var errURL = errors.New("asb: not a valid URL: write sb://KEYNAME:KEY@NAMESPACE, with special characters of the key percent-encoded")

// ParseURL returns the Transport of a URL, "sb://KEYNAME:KEY@NAMESPACE.servicebus.windows.net".
// Without a key the caller sets Transport.Credential before it opens the Transport. Options of the
// URL:
//
//   - hierarchy=NAME and administration=URL: the fields of these names
//   - missing_topic=fail or ignore: MissingTopic
//   - max_message_size=BYTES: MaxMessageSize
//   - emulator=true: the host is Microsoft's emulator
//   - topic=TYPE=TOPIC: Topology.PublishTo and SubscribeTo; may be repeated
//   - shared_topic=TOPIC: Topology.Shared; may be repeated
//   - no_hierarchies=true: Topology.NoHierarchies
//
// Errors name the option that is unknown or not valid, and repeat nothing else of the URL.
func ParseURL(raw string) (*Transport, error) {
	u, err := url.Parse(raw)
	if err != nil || u.Scheme != "sb" || u.Host == "" || u.Fragment != "" || strings.Contains(u.RawQuery, "@") {
		return nil, errURL
	}
	if strings.Trim(u.Path, "/") != "" {
		return nil, errors.New("asb: a path follows the host: use ?hierarchy=NAME to put NAME before all queues and topics")
	}
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errURL
	}
	t := &Transport{}
	emulator := false
	for _, name := range slices.Sorted(maps.Keys(options)) {
		if err := t.setOption(name, options[name], &emulator); err != nil {
			return nil, err
		}
	}
	key, keyed := u.User.Password()
	switch {
	case u.User != nil && !keyed:
		return nil, errors.New("asb: a key name without a key: write sb://KEYNAME:KEY@HOST, or sb://HOST to use a credential of Entra ID")
	case !keyed && emulator:
		return nil, errors.New("asb: an emulator needs a key: write sb://KEYNAME:KEY@HOST?emulator=true")
	case !keyed:
		t.Namespace = u.Host
		return t, nil
	}
	t.ConnectionString = fmt.Sprintf("Endpoint=sb://%s;SharedAccessKeyName=%s;SharedAccessKey=%s", u.Host, u.User.Username(), key)
	if emulator {
		t.ConnectionString += ";UseDevelopmentEmulator=true"
	}
	return t, nil
}

// setOption sets what an option of a URL stands for.
func (t *Transport) setOption(name string, values []string, emulator *bool) (err error) {
	if len(values) > 1 && name != "topic" && name != "shared_topic" {
		return fmt.Errorf("asb: option %q of the URL is set %d times", name, len(values))
	}
	value, want := values[0], "true or false"
	switch name {
	case "hierarchy":
		t.Hierarchy = value
	case "missing_topic":
		t.MissingTopic = MissingTopic(value)
	case "administration":
		t.Administration = value
	case "shared_topic":
		t.Topology.Shared = values
	case "emulator":
		*emulator, err = strconv.ParseBool(value)
	case "no_hierarchies":
		t.Topology.NoHierarchies, err = strconv.ParseBool(value)
	case "max_message_size":
		want = "a number of bytes"
		t.MaxMessageSize, err = strconv.Atoi(value)
	case "topic":
		want = "TYPE=TOPIC"
		err = t.Topology.mapTypes(values)
	default:
		return fmt.Errorf("asb: unknown option %q of the URL: want administration, emulator, hierarchy, max_message_size, "+
			"missing_topic, no_hierarchies, shared_topic or topic", name)
	}
	if err != nil {
		return fmt.Errorf("asb: option %q of the URL: want %s", name, want)
	}
	return nil
}

// mapTypes maps types to topics, by pairs TYPE=TOPIC.
func (y *Topology) mapTypes(pairs []string) error {
	y.PublishTo, y.SubscribeTo = map[string]string{}, map[string][]string{}
	for _, pair := range pairs {
		kind, topic, _ := strings.Cut(pair, "=")
		if kind == "" || topic == "" {
			return errURL
		}
		y.PublishTo[kind] = topic
		y.SubscribeTo[kind] = append(y.SubscribeTo[kind], topic)
	}
	return nil
}
