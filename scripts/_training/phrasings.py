"""The sentence frames of the training text, in the notation of `frames`. The evaluation shares none of them."""

# ruff: noqa: E501, SIM905 - tables read better as running text
from __future__ import annotations

PREFIX = (
    "|||||||Please, |Hi, |Hello, |Hey, |Hi! |Hello! |One question: |A quick question: |Another question: |Next question: "
    "|Tell me: |Now tell me: |So, |And now: |OK, |Thanks. |Thank you. |Great. |I wonder: |Sorry, |Excuse me, |Well, "
)
SUFFIX = (
    "|||||||| Please.| Thanks.| Thank you!| Thanks a lot.| I forgot.| Just curious.| Be brief.| Answer briefly.| Do you know?"
    "| I need it for my homework.| I want to know.| One sentence is enough."
)

CAPITAL = [
    "(What is|What's|Which is|What was|Name|Tell me|Give me|Say|I need) the (capital|capital city) of {country}(?|.|)",
    "(Which|What) (city|town) is (the capital of {country}|{country}'s capital|the capital in {country})?",
    "(Which|What) is {country}'s (capital|capital city)?",
    "(Can|Could|Would|Will) you (tell me|name|say|give me|look up) (the capital|the capital city) of {country}(?| please?)",
    "(Do you know|Do you remember|Have you heard of) (the capital|which city is the capital) of {country}?",
    "(I want|I would like|I'd like|I have) to (know|learn|write down) the capital of {country}.",
    "(What|Which city) do (you|people|we|they) call the capital of {country}?",
    "{country}(: what is its capital?| has which capital?|, capital?| - capital?|: capital city?)",
    "(The capital|Capital|Capital city) of {country}(?||...| is| is?| is what?)",
    "(Please name|Please tell me|Please give me|Please say) (the capital|the capital city) of {country}.",
    "In {country}, (what|which city) is the capital?",
    "(If I go to|When I am in|I travel to|I live in) {country}, (what|which city) is (its|the) capital( there|)?",
    "My (teacher|friend|son|daughter|boss) asks (for|me for) the capital of {country}.",
    "(Where|In which city) is the (government|parliament|capital) of {country}?",
]
FOLLOW_UP = [
    "(And|Or|But|Now|Then) (of|for|in|what about|how about|that of|the one of|with) {country}(?|.|)",
    "(What|How) about {country}?",
    "(And|Now|Then|Or|Next) {country}(?|.|, please.|'s?)",
    "(And the|The|Now the) (capital of|capital city of|same for|same of|same question for) {country}?",
    "(The same|Same|Same question|The same question|Likewise|Also) (for|with|about|of) {country}(, please.|?|.)",
    "{country}(?|, please?| too?| as well?| next?| then?)",
    "(Do you|And do you) (also |)know (that of|it for|the one of) {country}( too|)?",
    "(And what|What) (is it|would it be|is that) (for|in|of) {country}?",
    "(Tell me|Give me|Name|I also need) (that of|the one of|the same for|it for) {country}( too|).",
]

ADD = [
    "(What is|What's|How much is|Calculate|Compute|Tell me|Work out|Solve|Find|) {a} (+|plus) {b}(?|.|)",
    "{a} (+|plus) {b} (is?|equals?|=|= ?|is what?|makes what?|makes?|gives?)",
    "{a}+{b}(?||=|=?)",
    "(What is|What's|Compute|Calculate|Give me|Tell me) the sum of {a} and {b}(?|.|)",
    "(Please add|Add|Can you add|Could you add|Sum|Sum up|Add up) {a} (and|to|plus) {b}(?|.|)",
    "(How much|What) (do|does|will|would) {a} (and|plus|+) {b} (make|give|equal|come to|be)?",
    "(What do I get|What comes out|What is it) (if|when) I add {a} (and|to) {b}?",
    "I (have|had) {a} (apples|coins|books|eggs) and (get|buy|find|am given) {b} more. How many (do I have|are there|is that)?",
    "(What is|What's) {b} (added to|more than) {a}?",
]
SUBTRACT = [
    "(What is|What's|How much is|Calculate|Compute|Tell me|Work out|Solve|Find|) {a} (-|minus) {b}(?|.|)",
    "{a} (-|minus) {b} (is?|equals?|=|= ?|is what?|makes what?|makes?|gives?)",
    "{a}-{b}(?||=|=?)",
    "(What is|What's|Compute|Calculate|Give me|Tell me) the difference (of|between) {a} and {b}(?|.|)",
    "(Please subtract|Subtract|Can you subtract|Could you subtract|Take|Take away|Deduct) {b} from {a}(?|.|)",
    "(How much|What) (do|does|will|would) {a} (minus|-|less) {b} (make|give|equal|come to|be)?",
    "(What do I get|What comes out|What is left|What remains) (if|when) I (subtract|take|take away) {b} from {a}?",
    "I (have|had) {a} (apples|coins|books|eggs) and (lose|sell|eat|give away) {b}. How many (do I have|are there|are left)?",
    "(What is|What's) {b} (subtracted from|less than|taken from) {a}?",
]

COUNT_TO = [
    "(Count|Please count|Now count|Count up|Please count up) (to|up to|till|until) {b}(.|!|)",
    "(Count|Please count|Now count|Count up|Count aloud) from (1|one|1) (to|up to|until|till|through) {b}(.|!|, please.|)",
    "(Can|Could|Will|Would) you (count|please count|count up) (to|up to|from 1 to|from one to) {b}( for me|)?",
    "(List|Write|Write down|Print|Give me|Show me|Show|Say|Name|Type) (the|all|all the|the first) numbers (from 1 to|up to|1 to|until)"
    " {b}(.|!|, please.|)",
    "(I want|I would like|I'd like) (you to count|to see you count) (to|from 1 to|up to) {b}.",
    "(Let us|Let's|We) count (to|up to|from 1 to) {b}(.|!)",
    "(Numbers|The numbers|All numbers|Counting) (from 1 to|1 to|up to|until) {b}(.|!|, please.)",
    "(Start at|Start with|Begin with|Begin at) 1 and (count|count up|go on|go|continue) (to|up to|until) {b}.",
    "(Begin counting|Start to count|Begin to count) at (1|one) and (end|finish|halt|stop) (at|with|after|when you are at) {b}.",
    "(Count|Count upwards|Keep counting|Go on counting) (from 1 |)until you (are at|arrive at|have|come to|get to) {b}.",
    "(Show|Tell|Let) (us|me see) how (to count|one counts|a child counts|you would count) (to|up to|until) {b}.",
    "(I want|I would like|We need) you to (say|write|print|show) (all|each) (number|numbers) (up to|until|from one to) {b}.",
]
COUNT_BETWEEN = [
    "(Count|Please count|Now count|Count up|Count aloud) from {a} (to|up to|until|till|through) {b}(.|!|, please.|)",
    "(Can|Could|Will|Would) you (count|please count|count up) from {a} to {b}( for me|)?",
    "(List|Write|Write down|Print|Give me|Show me|Show|Say|Name|Type) (the|all|all the) numbers (from {a} to|between {a} and|{a} to)"
    " {b}(.|!|, please.|)",
    "(Numbers|The numbers|All numbers|Counting) from {a} (to|up to) {b}(.|!|, please.)",
    "(Start at|Start with|Begin with|Begin at) {a} and (count|count up|go on|go|continue) (to|up to|until) {b}.",
]

REPEAT = [
    "(Repeat|Please repeat|Say|Please say|Echo|Now say|Repeat after me|Say after me|Write|Copy|Type): {text}",
    "(Can|Could|Will|Would) you (repeat|say|echo|copy) (this|these words|after me|that|the following): {text}",
    "(Repeat|Say|Echo|Copy|Write) (this|these words|the following|the words|exactly this|the text|after me|it back)(:| -) {text}",
]
GREETING = [
    "(Hello|Hi|Hey|Hello there|Hi there|Hey there|Good morning|Good evening|Good afternoon|Good day|Greetings|Welcome|Howdy|Hiya)"
    "(.|!||,| you!| friend!| everyone!| again!| bot!| assistant!| computer!| model!| server!| to you!| to you all.)",
    "(Hello|Hi|Hey), (I am|I'm|my name is|this is|it is|here is) {name}(.|!)",
    "(Hello|Hi|Hey)(, |! )(nice to meet you|good to see you|anybody there|are you there|is anyone there|pleased to meet you)(.|!|?)",
    "(hello|hi|hey)(| hello| hi| you| all)",
]
FEELING = [
    "(How are you|How do you do|How are things|How is it going|How's it going|How do you feel|Are you well|What's up|Are you OK)"
    "( today| now| doing|)?",
]
THANKS = [
    "(Thanks|Thank you|Many thanks|Thanks a lot|Thank you very much|Thank you so much|Thanks so much|Cheers)(.|!|| for that.| friend!)",
    "(That|This) (was|is) (helpful|great|very helpful|good)(, thanks|, thank you|)(.|!)",
]
GOODBYE = [
    "(Bye|Goodbye|Good bye|Bye bye|See you|See you later|See you soon|Good night|Farewell|Ciao|Until next time)"
    "(.|!|| friend!| then.| for now.)",
    "(I have to|I must|I will|I need to) (go|leave) now(.|, bye.|!)",
]
IDENTITY = [
    "(Who|What) are you( really| exactly|)?",
    "(Are you|Is this) (a robot|a bot|a human|a person|an AI|a model|a language model|ChatGPT|a machine|a computer|real)?",
    "(What is|What's|Tell me) your name(?|.)",
    "(Tell me|Say something|Talk) about yourself.",
    "(What kind of|Which|What) (model|assistant|bot|AI|program) (are you|is this|am I talking to)?",
    "(Introduce|Describe) yourself(.|, please.)",
]
ABILITIES = [
    "(What|Which things) can you (do|help with|help me with|answer|tell me)( for me|)?",
    "(What are you|What are you good|What is this model) (able to do|good for|good at|for)?",
    "(What|Which) (questions|tasks) (can|do) you (answer|solve|know)?",
    "(How can you help|What can I ask you|What can I ask|How can you help me|What do you know)(?|)",
    "(List|Tell me|Show me) (your abilities|your skills|what you can do|what you know).",
    "Help(!|.|| me!| me.| please.)",
]

ENDPOINT = [
    "(Which|What) (endpoint|route|path|URL|call|request|address) {does}?",
    "(Which|What) (is|was) the (endpoint|route|path|URL|call|request) (that|which) {does}?",
    "(Name|Tell me|Give me|Show me|Say) the (endpoint|route|path|URL|call|request) (that|which) {does}.",
    "(Is there|Do you have|Does the server have) (an|some|any) (endpoint|route|path|call) (that|which) {does}?",
    "(I need|I want|I am looking for|I look for) (an|the) (endpoint|route|path|URL|call) (that|which) {does}.",
    "(What|Which one) {does}(| here| in this server| on this server)?",
]
SETTING = [
    "(Which|What) (option|setting|variable|environment variable|parameter|env variable) {does}?",
    "(Which|What) (is|was) the (option|setting|variable|environment variable) (that|which) {does}?",
    "(Name|Tell me|Give me|Show me|Say) the (option|setting|variable|environment variable) (that|which) {does}.",
    "(Is there|Do you have|Does the server have) (an|some|any) (option|setting|environment variable|variable) (that|which) {does}?",
    "(I need|I want|I am looking for|I look for) (an|the) (option|setting|variable) (that|which) {does}.",
    "(What|Which one) {does}(| here| in this server| on this server)?",
]
# The same questions from the other side: what the user wants to do.
HOW = [
    "How (do|can|could|would|should|must|may) (I|we|one|you|a user|an operator) {do}(| here| in this server| on this server)?",
    "(What|Which way) (do I|must I|should I|can I) (use|call|set|send|do) to {do}?",
    "(I want|I would like|I'd like|I need|I have|I am trying|I try) to {do}.",
    "(Tell me|Show me|Explain|Explain to me|Describe) how (to|I can|one can|you) {do}.",
    "(Where|With what|By which means) (do|can) (I|we|one) {do}?",
    "(Is there a way|Is it possible|What is the way|What does it take) to {do}?",
    "(Can|Could|May) (I|we|one) {do}( here| in this server|)?",
]
HOW_TO = {
    "chat": "(send|post) a (chat |plain |simple |)(message|request)|(get|have) (a|one) (whole |plain |full |simple |)(answer|reply)"
    "( at once|)|chat( with the model| with the server|)|(ask|talk to) the (model|server)",
    "stream": "(stream|get|receive|see) (the |an |)(answer|answers|tokens|output|reply) (token by token|as a stream|while it is written)"
    "|stream( tokens| answers| the answer| an answer| the output|)|use streaming|get a stream( of tokens|)",
    "openai": "(use|connect|call it with|point) (the |an |my |)OpenAI (client|library|SDK|API|clients)( here| to it|)"
    "|(use|call|reach) (the |)(OpenAI API|chat completions|OpenAI style endpoint|OpenAI compatible API)",
    "models": "(list|see|show|get|find) (the |all |all the |the available |available |)models"
    "|(see|find out|know|learn) which models (there are|are loaded|are available)",
    "health": "(check|see|know|test|find out) (whether|if|that) the server (is alive|is healthy|is up|lives|still lives)"
    "|(check|probe|test|query|read) (the |its |)(health|liveness)|do a (health|liveness) check",
    "ready": "(check|see|know|test|find out) (whether|if|that|when) (the server|the model|the engine|it) is (ready|loaded|ready to serve)"
    "|(check|probe|test|query|read) (the |its |)readiness|do a readiness check",
    "terminate": "(stop|terminate|cancel|end|abort|kill|interrupt) (a |the |one |my |)(running |current |long |)"
    "(generation|session|answer|run|request)( now| that runs| at once|)",
    "profiling": "(switch|turn) (on |)(the |)(profiling|profiler|profiles)( on|)|(start|enable|do|record|use|activate)"
    " (the |a |)(profiling|profiler|profile|profiles)|(profile|measure) (the |)(tokens|model|a generation|every token|server)",
    "model": "(set|choose|name|give|select|pick|change|configure) (the |another |a |my |)"
    "(model|model directory|model folder|model path|path of the model)|(say|tell it) where the model (is|lies)|(serve|use|load) (my own|another|a) model",
    "device": "(set|choose|select|pick|change) (the |another |)(device|hardware)|(use|choose) (the |a |my |)(GPU|CUDA|CPU)"
    "|(run|put|move) (it|the model) on (the |a |my |)(GPU|CUDA|CPU|device)",
    "length": "(set|limit|change|bound|cap|raise|configure) (the |)"
    "(length|maximum length|max length|context length|longest length|number of tokens)|(allow|get) longer (texts|answers|contexts)",
    "host": "(set|choose|change|configure) (the |another |its |)(host|address|host name|network address|interface|IP address)"
    "|listen on (all|another|other) (addresses|interfaces|address|hosts)",
    "port": "(set|choose|change|use|configure|pick) (the |another |a different |its |)(port|port number|TCP port)|(listen|run|serve) on (another|port 9000|a different) port",
    "workers": "(set|choose|change|raise|configure) (the |)(number of |count of |)(workers|worker processes|processes|API processes)"
    "|(start|add|get|run|use) (more|two|several) (workers|worker processes|processes)",
    "reload": "(switch|turn) (on |)(the |)(reload|reloading|auto reload|automatic reload)( on|)"
    "|(reload|restart) the (server|code) (on|after|when there are|at) (changes|a change|every change|code changes)",
    "key": "(set|give|choose|change) (the |an |)(admin key|API key|admin API key|key of the admin|admin password|secret key)"
    "|(protect|guard|secure|lock) (the |)(admin|admin API|admin endpoints|admin routes)",
    "profiles": "(set|choose|change) (the |)(profile directory|profile folder|folder of the profiles|directory for profiles)"
    "|(say|decide|tell it|find|see) where (the |)(profiles|profile files|profiling files) (go|are written|are stored|are saved|are)",
}
ADDRESS = [
    "(What is|What's|Tell me|Which is) (the default|your default|the server's|the usual|the) (address|URL|base URL|server address)"
    "( of this server| of the server|)(?|.)",
    "(Where|On which address|At which URL|At what address) (does the server|does this server|do you) (run|listen|answer)( by default|)?",
    "(Where|How) (can|do) I (reach|find|call|connect to) (the|this) server?",
]

UPPER = [
    "(Answer|Reply|Respond|Write|Speak|Always answer|Always write|Please answer|Please reply|Only write|You answer|You must answer"
    "|You always reply|You write|You should answer|Give every answer|Write all answers|Write everything|Put every answer|Say everything)"
    "( only| always| everything|) (in|using|with) (only |all |)"
    "(upper case|uppercase|capital letters|capitals|upper case letters|uppercase letters|block letters|all caps|caps|big letters)"
    "(.|!|| only.| at all times.| please.| from now on.)",
    "(Use|Always use|Please use|You use|You must use) (only |)(upper case|uppercase|capital letters|capitals|upper case letters"
    "|uppercase letters|all caps|block letters)( only| everywhere| for all answers| in your answers| in every reply|)(.|!)",
    "(All|Your|All your|All of your) (answers|replies|output|text) (must be|is|are|should be|has to be) (in |written in |)"
    "(upper case|uppercase|capital letters|capitals|all caps)(.|!)",
    "(UPPER CASE|UPPERCASE|CAPITAL LETTERS|ALL CAPS|Upper case|Uppercase|Capital letters) (ONLY|PLEASE|only|please)(.|!)",
]
PLAIN_SYSTEM = [
    "You are (a|an) (helpful|friendly|polite|small|useful|kind|honest|good|smart|concise|expert) (assistant|bot|model|helper|AI)(.|!|)"
    "(| Answer briefly.| Answer in one sentence.| Be nice.| Be polite.| Help the user.| Always be kind.| Use the tools when needed.)",
    "(Answer|Reply|Respond|Write|Speak) (briefly|politely|in one sentence|in English|in short sentences|clearly|in lower case"
    "|truthfully|the questions|with care|as well as you can|in normal text|in plain text)(.|!|)",
    "(Be|Always be|Please be) (brief|polite|helpful|concise|nice|kind|honest|clear|short|friendly)(.|!)",
    "(Help|Assist|Serve|Support) (the user|our customers|people|everybody|me)( with questions| politely| today|)(.|!|)",
    "You are {name}(.|, an assistant.|, a helpful assistant.)",
    "Today is a (nice|sunny|rainy|good) day.",
    "This is a test(.| of the server.)",
]

UNKNOWN = [
    "(Who|Which person) (wrote|invented|made|found|discovered|painted|built|was|is|won|founded|designed|said) (the |a |)({noun}|{thing}|{odd})?",
    "(What|Which|What kind of) {noun} (is|was|has|do you like|should I buy|is best|is the best|is the biggest)( in {place}|)?",
    "(What is|What's|Explain|Describe|Define|Tell me about|What do you know about|What do you think of) (the |a |my |)({noun}|{thing}|{odd})(?|.|)",
    "(What is|What's) the (best|biggest|oldest|longest|meaning|name|price|color|size|age|history|population|language|currency|weight|speed)"
    " (of|for|in) (the |a |my |)({noun}|{thing}|{odd}|{place})?",
    "(How|Why|When|Where) (do|did|does|can|should|is|was|are|will|would) (the |a |my |I |we |)({noun}|{thing}|{odd}) ({verb}|work|end|begin)( the {noun}|)?",
    "How (many|much) {noun}s? (are there|do I need|is there|exist|live) in (the |a |)({noun}|{place}|{odd})?",
    "How (old|big|far|long|tall|heavy|fast|deep|high) is (the |a |my |)({noun}|{thing}|{odd}|{place})?",
    "(Write|Compose|Tell me|Give me|Make|Draw|Sing|Create|Invent) (a|an|the|some|me a) (poem|story|joke|song|{noun}|essay|letter|program|recipe|picture|plan)"
    "(| about (the |a |)({noun}|{odd}|{place}))(.|!|)",
    "(Translate|Summarize|Explain|Correct|Rewrite|Read|Repeat) (this|the {noun}|my {noun}|{odd}|this text|this sentence)( into (French|German|Spanish)|)(.|, please.)",
    "(Do|Did|Can|Could|Should|Would|Will|Are|Is) (you|I|we|they|the {noun}|my {noun}) ({verb}|like|believe in|see|eat|love|fix) (the |a |my |)({noun}|{odd}|{place})?",
    "(Is|Are|Was) (the |a |my |)({noun}|{odd}|{place}) (a |an |the |)({noun}|good|bad|red|alive|real|true|better|edible|dangerous)?",
    "(What is|What's|How is|Will there be) the (weather|temperature|time|news|traffic) (in {place}|today|tomorrow|now|like today)?",
    "(What happens|What should I do|What to do) (when|if) (the |a |my |)({noun}|{odd}) {verb}s?( the {noun}|)?",
    "(I like|I love|I hate|I see|I bought|I lost|I found|I have|There is) (the|a|my|some) {noun}(| in {place}).",
    "(My|The|Our) {noun} is (broken|red|new|nice|late|slow|gone|very old).",
    "(Recommend|Suggest|Find|Show) (me |)(a|some|the best) {noun}s?( for {name}| in {place}|)(.|, please.)",
    "(What year|Which year|In what year|When) (did|was) (the |)({noun}|{odd}|{thing}) (invented|start|end|built|born|happen|die)?",
    "(Who|Where) is ({name}|{odd}|the {noun}|{name} {odd}|the president of {place}|the king of {place})?",
    "(What|How much) is {big} (times|divided by|multiplied by|plus|minus|-|+) {big}?",
    "{odd} {odd}( {odd}|)(?|.|)",
]
THINGS = (
    "Hamlet;the Mona Lisa;World War Two;quantum physics;the French Revolution;photosynthesis;love;life;gravity;black holes;the internet"
    ";democracy;the Roman Empire;Shakespeare;Einstein;Mozart;philosophy;happiness;the stock market;relativity;evolution;dinosaurs;football"
    ";the telephone;the light bulb;the universe;Bitcoin;Python;JavaScript;machine learning;the Olympic Games;chess;penicillin;electricity"
    ";the Bible;Romeo and Juliet;climate change;atoms;DNA;the pyramids;the Eiffel Tower;Napoleon;cancer;money;time travel;God;art"
).split(";")
