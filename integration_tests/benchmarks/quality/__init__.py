"""Cost of asynchronous training and lazy rows in quality, on real data.

__main__.py     trains every setting in turns and prints the tables
packages.py     fetches data that comes inside of a package
problem.py      a data set, a model of it, and a score of its answers
scores.py       scores of answers: AUC, RMSE, recall
movielens.py    100,000 ratings of films: predicts stars, and films
census.py       300,000 people of the US census: predicts high incomes
flights.py      330,000 flights from New York: predicts late arrivals
tabular.py      the wide and deep model of the last two
training.py     one training with one setting
tables.py       figures of many trainings
consistency.py  compares synchronous, bounded and asynchronous training
"""
