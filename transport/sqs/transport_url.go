package sqs

import (
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
)

var errNotURL = errors.New("sqs: want sqs://REGION with options such as ?profile=name: " +
	"credentials come from where the AWS tools look for them")

// ParseURL returns the transport of a URL such as "sqs://eu-central-1?profile=shop". The host is
// the region; "sqs://" leaves the region to the AWS tools' configuration. The options have the
// names of the fields:
//
//	profile, endpoint, queue_prefix, topic_prefix, missing_topic, event_topics, kms_key, group_header
//	retention, lease                               a duration such as 168h
//	receive_limit, max_message                     a number
//	raw_body, wide_policy, short_delays            true or false
//
// Credentials are never part of the URL. An error names the option that is wrong, and does not
// repeat the URL.
func ParseURL(s string) (*Transport, error) {
	u, err := url.Parse(s)
	if err != nil {
		return nil, errors.New("sqs: not a valid URL") // err repeats it
	}
	if u.Scheme != "sqs" || u.User != nil || u.Path != "" && u.Path != "/" || u.Opaque != "" || u.Fragment != "" {
		return nil, errNotURL
	}
	options, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return nil, errors.New("sqs: the options are not valid: percent-encode special characters")
	}
	t := &Transport{Region: u.Host}
	for name, values := range options {
		if len(values) > 1 {
			return nil, fmt.Errorf("sqs: option %q is set %d times", name, len(values))
		}
		if err := t.setOption(name, values[0]); err != nil {
			return nil, err
		}
	}
	return t, t.check()
}

func (t *Transport) setOption(name, value string) error {
	texts := map[string]*string{
		"profile": &t.Profile, "endpoint": &t.Endpoint, "queue_prefix": &t.QueuePrefix, "topic_prefix": &t.TopicPrefix,
		"missing_topic": (*string)(&t.MissingTopic), "event_topics": (*string)(&t.EventTopics), "kms_key": &t.KMSKey,
		"group_header": &t.GroupHeader,
	}
	durations := map[string]*time.Duration{"retention": &t.Retention, "lease": &t.Lease}
	numbers := map[string]*int{"receive_limit": &t.ReceiveLimit, "max_message": &t.MaxMessage}
	flags := map[string]*bool{"raw_body": &t.RawBody, "wide_policy": &t.WidePolicy, "short_delays": &t.ShortDelays}
	var err error
	switch {
	case texts[name] != nil:
		*texts[name] = value
		if name == "endpoint" {
			return checkEndpoint(value)
		}
		return nil
	case durations[name] != nil:
		*durations[name], err = time.ParseDuration(value)
	case numbers[name] != nil:
		*numbers[name], err = strconv.Atoi(value)
	case flags[name] != nil:
		*flags[name], err = strconv.ParseBool(value)
	case strings.Contains(name, "@"): // the rest of a password that holds a ?
		return errNotURL
	default:
		return fmt.Errorf("sqs: unknown option %q: want endpoint, event_topics, group_header, kms_key, lease, max_message, "+
			"missing_topic, profile, queue_prefix, raw_body, receive_limit, retention, short_delays, topic_prefix or wide_policy",
			name)
	}
	if err != nil {
		return fmt.Errorf("sqs: option %s: %w", name, err)
	}
	return nil
}

func checkEndpoint(endpoint string) error {
	u, err := url.Parse(endpoint)
	switch {
	case err != nil:
		return errors.New("sqs: option endpoint: not a valid URL")
	case u.Host == "":
		return errors.New("sqs: option endpoint: no host")
	}
	return nil
}
