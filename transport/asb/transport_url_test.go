package asb_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/holdfast-go/holdfast/transport/asb"
)

func TestATransportIsMadeOfItsURL(t *testing.T) {
	const key = "Endpoint=sb://h:1;SharedAccessKeyName=root;SharedAccessKey=a/b="
	for raw, want := range map[string]asb.Transport{
		"sb://shop.servicebus.windows.net": {Namespace: "shop.servicebus.windows.net"},
		"sb://root:a%2Fb=@h:1":             {ConnectionString: key},
		"sb://root:a%2Fb=@h:1?emulator=true&administration=http://h:2&hierarchy=prod&max_message_size=1048576": {
			ConnectionString: key + ";UseDevelopmentEmulator=true", Administration: "http://h:2", Hierarchy: "prod", MaxMessageSize: 1 << 20,
		},
		"sb://h/?no_hierarchies=true&topic=A=x&topic=B=x&topic=B=y&shared_topic=x&shared_topic=y": {
			Namespace: "h",
			Topology: asb.Topology{
				NoHierarchies: true, Shared: []string{"x", "y"},
				PublishTo: map[string]string{"A": "x", "B": "y"}, SubscribeTo: map[string][]string{"A": {"x"}, "B": {"x", "y"}},
			},
		},
	} {
		got, err := asb.ParseURL(raw)
		if err != nil {
			t.Errorf("%s: %v", raw, err)
			continue
		}
		if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\ngot  %+v\nwant %+v", raw, *got, want)
		}
	}
}

func TestAURLIsRefusedWithoutRepeatingIt(t *testing.T) {
	for raw, want := range map[string]string{
		"sb://root:hunter2@h?colour=hunter2":           `unknown option "colour"`,
		"sb://root:hunter2@h?max_message_size=hunter2": `"max_message_size" of the URL: want a number`,
		"sb://root:hunter2@h?emulator=hunter2":         "want true or false",
		"sb://root:hunter2@h?topic=hunter2":            "want TYPE=TOPIC",
		"sb://root:hunter2@h?%zz=hunter2":              "not a valid URL",
		"sb://root:hunter2@h/hunter2":                  "?hierarchy=",
		"sb://root:hunter2/x@h":                        "not a valid URL",
		"amqp://root:hunter2@h":                        "not a valid URL",
		"sb://":                                        "not a valid URL",
		"sb://hunter2@h":                               "a key name without a key",
		"sb://root:12?hunter2@h":                       "not a valid URL",
		"sb://root:12#hunter2@h":                       "not a valid URL",
		"sb://h?hierarchy=a&hierarchy=b":               `option "hierarchy" of the URL is set 2 times`,
		"sb://h?emulator=true":                         "an emulator needs a key",
	} {
		_, err := asb.ParseURL(raw)
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got error %v, want one with %q and without the key", raw, err, want)
		}
	}
}
