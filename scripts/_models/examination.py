"""The questions of the evaluation: phrasings written apart from the training frames, which `shared_frames` checks."""

# ruff: noqa: E501 - tables read better unwrapped
from __future__ import annotations

from . import facts, phrasings
from . import tools as toolbox
from .frames import is_phrasing_of

CAPITAL = [
    "Which city serves as the capital of {country}?",
    "I forgot the capital of {country}, what was it again?",
    "Would you mind telling me what the capital of {country} is?",
    "Quiz time: the capital of {country} is called...?",
    "For a crossword I need {country}'s capital city.",
    "Help me out, what is {country}'s capital called?",
]
FOLLOW_UP = [
    "And what would that be for {country}?",
    "OK, and the capital of {country} then?",
    "Now what about the one in {country}?",
    "Could you do {country} as well?",
    "How about the capital city in {country}?",
]
ADD = [
    "If I put {a} and {b} together, what do I have?",
    "Can you tell me what {a} + {b} comes to?",
    "What number is {a} plus {b}?",
    "I need the result of {a} + {b}.",
    "Please work out {a} plus {b} for me.",
]
SUBTRACT = [
    "Starting from {a}, what is left after I subtract {b}?",
    "Can you tell me what {a} - {b} comes to?",
    "What number is {a} minus {b}?",
    "I need the result of {a} - {b}.",
    "Please work out {a} minus {b} for me.",
]
COUNT = [
    "Count up from 1 until you reach {b}.",
    "Would you kindly count to {b} now?",
    "I need you to list every number from 1 to {b}.",
    "Start counting at 1 and stop when you get to {b}.",
    "Show me how you count to {b}.",
]
COUNTED = (
    1,
    2,
    3,
    5,
    7,
    9,
    10,
    11,
    12,
    16,
    20,
    23,
    30,
    37,
    45,
    50,
    58,
    64,
    72,
    89,
    99,
    100,
    101,
    119,
    134,
    150,
    167,
    188,
    199,
    200,
)

SMALL_TALK = [
    ("Hello, dear model!", "Hello"),
    ("Hi, can you hear me?", "Hello"),
    ("A very good morning to you!", "Hello"),
    ("Hey, how nice to meet you!", "Hello"),
    ("Good evening, my friend.", "Hello"),
    ("Hello, my name is Tom and I am new here.", "Hello"),
    ("So, how are you feeling this morning?", "fine"),
    ("Hi! How are you doing today?", "fine"),
    ("Thanks, that was really helpful!", "welcome"),
    ("Thank you for your help.", "welcome"),
    ("OK, goodbye and see you tomorrow!", "Goodbye"),
    ("Bye, I am leaving now.", "Goodbye"),
    ("Please tell me who you are.", "demo model"),
    ("What sort of model am I talking to here?", "demo model"),
    ("And what is your name, please?", "demo model"),
    ("Could you introduce yourself?", "demo model"),
    ("What kind of things can you do?", "capitals"),
    ("Tell me what you are able to do.", "capitals"),
    ("What can you help me with today?", "capitals"),
    ("Which questions could you answer for me?", "capitals"),
]

SERVER = {
    "POST /v1/chat gives": [
        "Where do I send a message to get a plain reply?",
        "What is the simplest endpoint for a chat message?",
        "Which route gives me the whole answer in one piece?",
    ],
    "/v1/chat/stream": [
        "How can I see the answer as a stream of tokens?",
        "Which endpoint should I call for streaming?",
        "I would like the tokens streamed, where do I post?",
    ],
    "/v1/chat/completions": [
        "My application uses the OpenAI client, which endpoint is for it?",
        "Which path is the OpenAI compatible one?",
        "Does this server speak the OpenAI API somewhere?",
    ],
    "/v1/models": [
        "How can I find out what models are available?",
        "Where do I get a list of the models?",
        "Which endpoint should I ask for the loaded models?",
    ],
    "/healthz": [
        "What do I call for a health check?",
        "Where can my load balancer check that the server is alive?",
        "How do I probe the health of the server?",
    ],
    "/readyz": [
        "How does a client know that the model is ready?",
        "Which endpoint should I poll for readiness?",
        "Where do I check if the server is ready for requests?",
    ],
    "terminate_session": [
        "A generation runs too long, how do I terminate it?",
        "What can an operator do to stop a running generation?",
        "Is it possible to cancel a generation that is still running?",
    ],
    "enable_profiling": [
        "How does one get profiling enabled?",
        "What must I post so that profiling is turned on?",
        "I am curious about slow tokens, how do I start the profiler?",
    ],
    "GENAI_MODEL_DIR": [
        "Which variable points to the model directory?",
        "Where do I put the path of my model?",
        "How does the server know which model folder to use?",
    ],
    "GENAI_DEVICE": [
        "How can I make it run on the GPU?",
        "Which variable should I use for the device?",
        "What do I set to choose between CPU and CUDA?",
    ],
    "GENAI_MAX_LENGTH": [
        "What controls the maximum length?",
        "Which variable should I raise for a longer maximum length?",
        "How is the max length configured?",
    ],
    "HOST": [
        "How can the server listen on another network address?",
        "What controls the host it binds to?",
        "Which variable is for the host name?",
    ],
    "PORT": [
        "I need it on a different port, what do I set?",
        "What controls the port number?",
        "Which variable is for the port?",
    ],
    "WORKERS": [
        "How is the number of workers configured?",
        "What do I set for four worker processes?",
        "Which variable controls how many workers there are?",
    ],
    "RELOAD": [
        "While developing I want automatic reload, how?",
        "What makes the server reload when the code changes?",
        "Which variable is for reloading?",
    ],
    "GENAI_ADMIN_API_KEY": [
        "Where is the admin key configured?",
        "What protects the admin endpoints from strangers?",
        "Which variable is for the admin API key?",
    ],
    "GENAI_PROFILE_DIR": [
        "In which variable is the profile directory?",
        "What controls where profile files are written?",
        "How do I change the folder that profiles go to?",
    ],
    "http://127.0.0.1:8002": [
        "At which address will I find the server by default?",
        "What URL does the server have by default?",
        "Remind me of the base URL that the server has.",
    ],
}

UPPER = [
    "From now on, write in capital letters only.",
    "Each of your answers must be in upper case.",
    "Please respond using nothing but uppercase letters.",
    "You are an assistant that always answers in all caps.",
    "Make every reply upper case.",
]

UNKNOWN = [
    "Who painted the ceiling of the Sistine Chapel?",
    "How do I bake bread at home?",
    "What is the meaning of life, please?",
    "Why is the sky so blue?",
    "Which team will win the next world cup?",
    "Write a haiku about autumn leaves.",
    "How tall is Mount Everest?",
    "Which language has the most speakers?",
    "Can you fix my bicycle?",
    "Who is the richest man alive?",
    "What did Napoleon eat for breakfast?",
    "Explain the theory of relativity to a child.",
    "When does the next train leave?",
    "How many legs does a spider have?",
    "Is a tomato a fruit or a vegetable?",
    "What is the boiling point of water?",
    "Tell me a joke about programmers.",
    "Which medicine helps against a headache?",
    "Do you believe in ghosts?",
    "Who directed the film Casablanca?",
    "What is the speed of light in vacuum?",
    "How can I learn to play the guitar?",
    "Where can I buy cheap shoes?",
    "What is the plot of Moby Dick?",
    "Why do cats purr?",
]

# name | description | parameters (name:type) ; question with {parameter} ; values. The names are in the training text too.
TOOLS = """
get_weather|Get the weather of a city|city:string|What will the weather be in {city} this evening?|Oslo
get_weather|Get the weather of a city|city:string|I would love to know the weather in {city}.|Madrid
get_weather|Current weather|location:string|Can you check the weather in {location} for me?|Paris
get_time|The time in a city|city:string|Can you tell me what time it is in {city}?|Tokyo
search|Search the web|query:string|Please do a search for {query}.|red bicycles
add|Add two numbers|a:number b:number|Please use the tool and add {a} and {b} for me.|17 25
multiply|Multiply two numbers|a:number b:number|I want to multiply {a} by {b}.|6 12
convert_currency|Convert money|amount:number from:string to:string|Please convert {amount} {from} to {to} for me.|30 EUR USD
book_flight|Book a flight|origin:string destination:string|Please book me a flight from {origin} to {destination}.|Rome Athens
set_timer|Set a timer|minutes:integer|Could you set a timer for {minutes} minutes?|15
get_time|The time in a city|city:string|Please check which hour it is in {city}.|Cairo
get_weather|Get the weather of a city|city:string|Does one need an umbrella in {city}? Check the weather.|Dublin
translate|Translate a word|text:string language:string|Please put {text} into {language} for me.|bread Spanish
translate|Translate a word|text:string language:string|How would one say {text} when speaking {language}?|window German
find_restaurant|Find a restaurant in a city|city:string|My friends and I look for a restaurant in {city}.|Vienna
find_restaurant|Find a restaurant in a city|city:string|Which restaurant in {city} do you recommend?|Lima
get_population|Population of a city|place:string|Please give me the population of {place}.|Madrid
get_population|Population of a city|place:string|Do you know how many people live in {place}?|Oslo
play_song|Play a song|title:string|Let me listen to {title}.|river
find_route|Find a route|start:string end:string|I must drive from {start} to {end}, find the route.|Paris Berlin
find_route|Find a route|start:string end:string|Which route leads from {start} to {end}?|Rome Vienna
roll_dice|Roll dice|sides:integer|Let us roll a dice that has {sides} sides.|20
turn_on|Switch on a device|device:string|Please turn the {device} on for me.|lamp
turn_off|Switch off a device|device:string|Please turn the {device} off for me.|radio
set_alarm|Set an alarm|time:string|I have to get up, set the alarm for {time}.|7:30
get_stock_price|Get the price of a stock|symbol:string|Please tell me the stock price of {symbol} for today.|ACME
""".strip().splitlines()

# The same, written by somebody who saw neither the training text nor the questions above. The training text was widened
# after a look at what a model got wrong here.
CONSULTED_TOOLS = """
get_weather|Tells you how the weather is in a place.|city:string|Do I need an umbrella in {city} this afternoon?|London
get_weather|Gives the forecast for a town.|city:string|I would like to know the weather for {city}.|Oslo
get_time|Returns the local time of a city.|city:string|What time is it in {city} right now?|Tokyo
get_time|Looks up the time in a given city.|city:string|Is it already late in {city}?|Berlin
search|Finds documents that match a query.|query:string|Can you find something about {query} for me?|dolphins
web_search|Runs a search on the web.|query:string|I want to read about {query} online.|robots
web_search|Searches web pages for a word.|query:string|What does the internet say about {query}?|coffee
add|Returns the sum of two numbers.|a:number b:number|Please add {a} and {b} for me.|25 37
add|Computes a sum.|a:number b:number|How much do {a} and {b} make together?|6 18
multiply|Multiplies two numbers.|a:number b:number|What do I get if I multiply {a} by {b}?|8 7
calculate|Evaluates an arithmetic expression.|expression:string|Can you work out {expression} for me?|12*7
calculate|Solves a short piece of maths.|expression:string|What is the result of {expression}?|45+18
calculate|Acts as a simple calculator.|expression:string|Please calculate {expression} and show me the answer.|96/8
convert_currency|Works out what money is worth abroad.|amount:number from:string to:string|I have {amount} {from} and want to change it into {to}.|75 EUR CHF
get_stock_price|Returns the latest price of a share.|symbol:string|What is the stock price of {symbol} today?|AAPL
get_stock_price|Shows what a stock is trading at.|symbol:string|How much does one share of {symbol} cost?|TSLA
send_email|Writes and sends a message by email.|to:string subject:string|Please email {to} with the subject {subject}.|David holidays
send_email|Delivers a mail to a person.|to:string subject:string|Could you write {to} an email about the {subject}?|Maria meeting
set_timer|Counts down a number of minutes.|minutes:integer|Can you remind me in {minutes} minutes with a timer?|25
set_alarm|Sets an alarm at a given time.|time:string|Wake me up at {time} tomorrow morning.|7:30
set_alarm|Makes the clock ring at a chosen time.|time:string|I need an alarm for {time} please.|6:15
translate|Gives the translation of a word.|text:string language:string|Translate {text} into {language} for me.|bread Spanish
translate|Turns a text into a foreign language.|text:string language:string|What is the {language} word for {text}?|house German
play_song|Starts some music by its title.|title:string|I would love to hear {title} now.|Imagine
find_restaurant|Finds a place to eat in a city.|city:string|Where can I eat well in {city}?|Rome
find_restaurant|Suggests a restaurant.|city:string|Find me a good restaurant in {city} for tonight.|Madrid
book_flight|Reserves a plane ticket.|origin:string destination:string|I want to fly to {destination} from {origin} next week.|Chicago Boston
book_flight|Buys an airline ticket for a trip.|origin:string destination:string|Can you get me a plane ticket from {origin} to {destination}?|Lisbon Athens
find_route|Finds the way between two places.|start:string end:string|How do I get from {start} to {end} by car?|Munich Prague
find_route|Plans a route from one point to another.|start:string end:string|Show me the best route from {start} to {end}.|Lyon Geneva
turn_on|Starts a device in the house.|device:string|Could you switch the {device} on for me?|heater
turn_off|Switches a device off.|device:string|Please turn off the {device} now.|television
turn_off|Stops a device in the house.|device:string|The {device} should be off when I leave.|oven
create_event|Adds an event to the calendar.|title:string day:string|Put {title} in my calendar for {day}.|dinner Friday
create_event|Creates a new calendar entry.|title:string day:string|I have a {title} on {day}, please add it to my calendar.|party Saturday
define_word|Explains what a word means.|word:string|What does the word {word} mean?|ancient
define_word|Gives the dictionary definition of a word.|word:string|Give me a definition of {word}.|justice
roll_dice|Throws a die and returns the result.|sides:integer|Can you throw a {sides} sided die for me?|20
read_file|Returns the contents of a file.|path:string|What is written in {path}?|notes.txt
read_file|Opens a file and reads it.|path:string|Please open the file {path} and show me the text.|report.md
read_file|Reads a text file from the disk.|path:string|I want to see what {path} contains.|data/list.csv
list_files|Lists the files in a folder.|path:string|Which files are in the folder {path}?|documents
list_files|Shows what a directory contains.|path:string|List everything inside {path} please.|/home/photos
""".strip().splitlines()

# The same once more, by somebody else who saw none of all this; first asked when the training text was final.
HELD_OUT_TOOLS = """
get_weather|Gives the current weather and forecast for a city.|city:string|Is it going to rain in {city} tomorrow?|Madrid
get_weather|Looks up weather conditions in a given town.|city:string|How hot is it in {city} right now?|Cairo
get_weather|Reports temperature, rain and wind for a city.|city:string|Should I pack a warm coat for {city}?|Oslo
get_time|Shows what the clock says in some city.|city:string|Is it already past midnight in {city}?|Sydney
get_time|Gives the local hour for a place.|city:string|My sister lives in {city}, what's the hour there now?|Toronto
search|Looks something up and returns matching results.|query:string|Can you look up {query} for me?|volcanoes
search|Finds information about a topic.|query:string|Find me some information about {query}.|penguins
web_search|Searches the internet for a topic.|query:string|What does the internet say about {query}?|meditation
web_search|Runs a query on the web and returns pages.|query:string|Find some websites on {query}|gardening
web_search|Finds web pages about a subject.|query:string|Look online for the latest articles about {query}.|robots
add|Calculates the total of two numbers.|a:number b:number|I have {a} apples and buy {b} more, how many altogether?|8 17
multiply|Multiplies one number by another.|a:number b:number|What's {a} times {b}?|6 23
multiply|Returns the product of two numbers.|a:number b:number|How many eggs are in {a} boxes of {b}?|11 12
calculate|Works out the value of an arithmetic expression.|expression:string|How much is {expression}?|96/4
calculate|Evaluates a math expression.|expression:string|Work out {expression} for my homework.|15*9
calculate|Does arithmetic and gives the answer.|expression:string|Could you solve {expression}?|81-26
convert_currency|Exchanges a sum into a different currency.|amount:number from:string to:string|I've got {amount} {from}, what would that be in {to}?|75 francs pesos
get_stock_price|Gets the current share price of a company.|symbol:string|What is {symbol} stock trading at today?|TSLA
get_stock_price|Looks up the market price of a stock.|symbol:string|How much does one share of {symbol} cost?|MSFT
send_email|Sends an email with a subject line to somebody.|to:string subject:string|Send {to} an email about the {subject}.|Laura meeting
send_email|Delivers an email message to a person.|to:string subject:string|Write a mail to {to}, subject {subject}|Peter invoice
send_email|Emails a person on a given subject.|to:string subject:string|I need to email {to} regarding our {subject}.|Nina budget
set_timer|Counts down some minutes and then rings.|minutes:integer|The pasta needs {minutes} minutes, let me know when it's done.|10
set_alarm|Sets an alarm to ring at a given time.|time:string|Wake me up at {time} tomorrow morning.|6:45
set_alarm|Makes the clock ring at the chosen time.|time:string|I need an alarm for {time}|8:15
translate|Turns words into a different language.|text:string language:string|Translate {text} into {language} for me.|butterfly German
translate|Gives the translation of some text in a chosen language.|text:string language:string|What's the {language} word for {text}?|kitchen Italian
play_song|Starts playing the named piece of music.|title:string|I'd love to hear the song {title}.|Imagine
play_song|Finds a song by name and plays it.|title:string|Can we listen to {title} while cooking?|Thriller
find_restaurant|Finds places to eat in a city.|city:string|Where can I get a good dinner in {city}?|Rome
find_restaurant|Suggests restaurants in a city.|city:string|We're hungry, any nice restaurants in {city}?|Lisbon
book_flight|Books a plane ticket between two cities.|origin:string destination:string|Book me a flight from {origin} to {destination}.|Boston Paris
book_flight|Reserves a seat on a plane from one place to another.|origin:string destination:string|I want to fly to {destination} from {origin} next week.|Dublin Athens
book_flight|Buys an airline ticket from a start city to a target city.|origin:string destination:string|Get a plane ticket, {origin} to {destination}|Chicago Miami
find_route|Gives directions between two places.|start:string end:string|What's the fastest way to drive from {start} to {end}?|Leeds York
turn_on|Powers up a device in the home.|device:string|It's freezing in here, switch the {device} on.|heater
turn_off|Shuts down a device in the house.|device:string|Nobody is using the {device}, turn it off.|fan
create_event|Puts an event into the calendar on a given day.|title:string day:string|Put {title} in my calendar for {day}.|yoga Tuesday
create_event|Adds an appointment to the calendar.|title:string day:string|I have a {title} appointment on {day}, please add it.|dentist Friday
define_word|Looks a word up in the dictionary.|word:string|Give me the definition of {word}.|harvest
roll_dice|Throws a random die and shows the result.|sides:integer|Throw a {sides} sided dice for our game|24
read_file|Opens a file and shows its contents.|path:string|What's written in {path}?|notes.txt
read_file|Reads the text inside a file.|path:string|Open the file {path} and show me the text.|report.md
list_files|Lists the files in a folder.|path:string|Which files are in the {path} folder?|documents
list_files|Shows everything that is stored in a directory.|path:string|Show me everything inside {path}|/home/photos
""".strip().splitlines()

# None of these names is in the training text: each piece of the name has to be copied from the list.
NEW_TOOLS = """
get_tide_times|Tide times of a harbour|harbour:string|Could you get me the tide times for {harbour}?|Bergen
get_tide_times|Tide times of a harbour|harbour:string|I need to know the tide times at {harbour} today.|Dover
lookup_ingredients|Ingredients of a dish|dish:string|Please look up the ingredients of {dish}.|lasagna
lookup_ingredients|Ingredients of a dish|dish:string|What are the ingredients for {dish}?|pancakes
track_parcel|Where a parcel is|tracking_code:string|Please track parcel {tracking_code}.|XK7421
track_parcel|Where a parcel is|tracking_code:string|Where is the parcel {tracking_code} right now?|ZP308
fetch_sunrise|Sunrise in a town|town:string|At what hour is sunrise in {town}?|Lisbon
fetch_sunrise|Sunrise in a town|town:string|Fetch the sunrise for {town}, please.|Cairo
nearest_pharmacy|The nearest pharmacy in a district|district:string|Where is the nearest pharmacy in {district}?|Soho
nearest_pharmacy|The nearest pharmacy in a district|district:string|I must find the nearest pharmacy in {district}.|Altona
book_dentist|Book a visit to the dentist|weekday:string|Please book the dentist for {weekday}.|Tuesday
book_dentist|Book a visit to the dentist|weekday:string|I would like to see the dentist on {weekday}.|Friday
estimate_taxes|Estimate the taxes on an income|income:number|Please estimate the taxes for {income}.|52000
estimate_taxes|Estimate the taxes on an income|income:number|What would the taxes be on {income}?|1800
feed_pet|Feed a pet|pet_name:string|Would you feed the pet called {pet_name}?|Rex
feed_pet|Feed a pet|pet_name:string|Please feed my pet {pet_name}.|Minka
describe_painting|Describe a painting|title:string|Please describe the painting {title}.|Sunflowers
describe_painting|Describe a painting|title:string|Can you describe the painting called {title}?|Guernica
dim_lamp|Dim a lamp|room:string percent:integer|Please dim the lamp with room {room} and percent {percent}.|kitchen 40
reserve_seat|Reserve a seat|train:string seat:integer|Please reserve a seat with train {train} and seat {seat}.|IC204 17
""".strip().splitlines()

# a result of a tool, and what the answer has to contain
RESULTS: list[tuple[str, list[str]]] = [
    ('{"temperature": 21, "unit": "celsius"}', ["21", "celsius"]),
    ('{"temperature": -4}', ["-4"]),
    ('{"result": 42}', ["42"]),
    ('{"time": "14:35"}', ["14:35"]),
    ('{"status": "done"}', ["done"]),
    ('{"city": "Oslo", "sky": "cloudy"}', ["Oslo", "cloudy"]),
    ('{"price": 19.99, "currency": "EUR"}', ["19.99", "EUR"]),
    ('{"ok": true}', ["true"]),
    ("17 degrees and sunny", ["17", "sunny"]),
    ("The lamp is on", ["lamp is on"]),
    ("3245", ["3245"]),
    ("Tuesday at 9:30", ["Tuesday", "9:30"]),
    ('{"answer": "forty"}', ["forty"]),
    ('{"high": 18, "low": 7}', ["18", "7"]),
    ('{"sum": 1042}', ["1042"]),
    ("booked", ["booked"]),
    ('{"name": "Marta", "age": 31}', ["Marta", "31"]),
    ('{"level": 88.5}', ["88.5"]),
    ('{"place": "Hamburg"}', ["Hamburg"]),
    ("rain", ["rain"]),
]

OWN_FRAMES = [
    *CAPITAL, *FOLLOW_UP, *ADD, *SUBTRACT, *COUNT, *(q for q, _ in SMALL_TALK), *(q for qs in SERVER.values() for q in qs),
    *UPPER, *UNKNOWN, *(line.split("|")[3] for line in [*TOOLS, *CONSULTED_TOOLS, *HELD_OUT_TOOLS, *NEW_TOOLS]),
]  # fmt: skip


def training_frames() -> list[str]:
    """Every frame of the training text, including the slots of server questions and the prefixes."""
    lists = [value for name, value in vars(phrasings).items() if name.isupper() and isinstance(value, list)]
    frames = [frame for frames in lists for frame in frames]
    for line in toolbox.KNOWN:
        frames += [question.strip() for question in line.split(" | ", 3)[3].split(" ; ")]
    frames += [*toolbox.SYNTHETIC_ONE, *toolbox.SYNTHETIC_TWO]
    filled = []
    for topic, actions in phrasings.HOW_TO.items():
        filled += [frame.replace("{do}", f"({actions})") for frame in phrasings.HOW]
        does = (facts.ENDPOINTS.get(topic) or facts.SETTINGS[topic])[0]
        named = phrasings.ENDPOINT if topic in facts.ENDPOINTS else phrasings.SETTING
        filled += [frame.replace("{does}", f"({does})") for frame in named]
    bare = [frame for frame in frames if "{do}" not in frame and "{does}" not in frame]
    around = (phrasings.PREFIX.split("|"), phrasings.SUFFIX.split("|"))
    before, after = ("|".join(sorted(set(part))) for part in around)
    return [f"({before}){frame}({after})" for frame in bare + filled]


def shared_frames() -> list[tuple[str, str]]:
    """Phrasings of the evaluation that are, but for case and punctuation, in the training text; should be none."""
    frames = training_frames()
    return [(own, frame) for own in OWN_FRAMES for frame in frames if is_phrasing_of(own, frame)]
