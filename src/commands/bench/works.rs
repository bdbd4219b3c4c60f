//! Texts for `ruvllm bench --speculation`, from nothing repeated to nearly everything.

use ruvllm_runtime::{Message, Prompt};

/// A workload.
pub struct Work {
    pub name: &'static str,
    pub tasks: &'static [Task],
}

/// One text to generate.
pub enum Task {
    /// A question, answered with the model's chat template.
    Question(&'static str),
    /// A text to continue up to a stop string. Small models edit a text more reliably once the edited one has begun.
    Beginning { text: &'static str, stop: &'static str },
}

impl Task {
    /// Returns the prompt and the stop string.
    pub fn prompt(&self, has_chat_template: bool) -> (Prompt, Option<&'static str>) {
        match self {
            Self::Question(text) if has_chat_template => (Prompt::Messages(vec![Message::user(text)]), None),
            Self::Question(text) => (Prompt::Text(format!("Question: {text}\nAnswer:")), None),
            Self::Beginning { text, stop } => (Prompt::Text((*text).to_owned()), Some(stop)),
        }
    }
}

pub const WORKLOADS: [Work; 5] = [
    Work {
        name: "open chat",
        tasks: &[
            Task::Question("Why is the sky blue?"),
            Task::Question("Tell me a short story about a dragon who is afraid of fire."),
            Task::Question("What are the advantages and disadvantages of working from home?"),
            Task::Question("Who was Napoleon and why is he remembered?"),
        ],
    },
    Work {
        name: "new code",
        tasks: &[
            Task::Question("Write a Python function that checks whether a string is a palindrome, with tests."),
            Task::Question("Write a Rust struct for a ring buffer of fixed capacity with push, pop and an iterator."),
            Task::Question("Write a SQL schema for a library with books, authors, members and loans."),
            Task::Question("Write a JavaScript function that debounces another function, and show how to use it."),
            Task::Question("Write a Go HTTP handler that returns the current time as JSON."),
            Task::Question("Write a bash script that deletes log files older than a week, with a dry run."),
            Task::Question("Write a C function that reverses a linked list, with the type definition."),
            Task::Question("Write a Python class for a bank account with deposit, withdraw and a history."),
        ],
    },
    Work { name: "copy of a paragraph", tasks: &[Task::Question(COPY)] },
    Work { name: "code edit", tasks: &[Task::Beginning { text: CODE, stop: "```" }] },
    Work { name: "JSON reformatting", tasks: &[Task::Beginning { text: JSON, stop: "\n]" }] },
];

const COPY: &str = "\
Repeat the following text word for word.

The lighthouse at Cape Marrow was built in 1871, after the wreck of the brig Adelaide. Its lamp burned whale oil for the \
first nine years, then paraffin, and from 1924 electricity. The keeper's cottage, which stands forty paces to the north, \
has walls a metre thick and a slate roof brought by sea from Wales. In the winter of 1903 the keeper, a man called Tobias \
Hale, was cut off from the village for twenty-six days and kept the light burning with furniture from his own parlour. \
The tower is eighteen metres high and has ninety-four steps, of which the seventh is loose.";

const CODE: &str = r#"Before:

```python
def total_price(items, rate):
    total = 0
    free = 0
    for item in items:
        if item.count == 0:
            continue
        price = item.price * item.count
        if item.discount:
            price = price * (1 - item.discount)
        if price == 0:
            free += item.count
        if item.weight > 20:
            price = price + 4.50 * item.count
        if item.country not in ("DE", "FR", "NL"):
            price = price + 12.00
        total += price
    tax = total * rate
    print("total", total, "tax", tax, "free", free)
    return total + tax
```

After renaming `item` to `entry`:

```python
def total_price(items, rate):
    total = 0
    free = 0
    for entry in items:
        if entry.count == 0:
            continue
        price ="#;

const JSON: &str = r#"[{"id": 1, "name": "Ada Lovelace", "born": 1815, "field": "mathematics"}, {"id": 2, "name": "Alan Turing", "born": 1912, "field": "computer science"}, {"id": 3, "name": "Grace Hopper", "born": 1906, "field": "computer science"}, {"id": 4, "name": "Emmy Noether", "born": 1882, "field": "mathematics"}, {"id": 5, "name": "Marie Curie", "born": 1867, "field": "physics"}, {"id": 6, "name": "Niels Bohr", "born": 1885, "field": "physics"}, {"id": 7, "name": "Barbara Liskov", "born": 1939, "field": "computer science"}, {"id": 8, "name": "Carl Gauss", "born": 1777, "field": "mathematics"}]

The same, formatted with one value on each line:

[
  {
    "id": 1,
    "name": "Ada Lovelace",
    "born": 1815,
    "field": "mathematics"
  },"#;
